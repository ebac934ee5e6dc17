"""RNN, GRU and LSTM against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from xla_cases import COLUMNS, case, check, f32, i32, ints, run

pytestmark = pytest.mark.usefixtures("quick_compilation")

T, B, F, H = 4, 3, 2, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": (True, True), "GRU": (True, True), "LSTM": (True, True, True)}
BOTH = "bidirectional"


def layer(op, *, directions=1, bias=True, lengths=None, states=False, peepholes=False, x=None, id=None, **attributes):
    g = GATES[op]
    inputs = [f32(T, B, F) if x is None else x, f32(directions, g * H, F), f32(directions, g * H, H)]
    batch_first = attributes.get("layout", 0)
    state = (B, directions, H) if batch_first else (directions, B, H)
    inputs += [f32(directions, 2 * g * H) if bias else None, lengths, f32(*state) if states else None]
    if op == "LSTM":
        inputs += [f32(*state) if states else None, f32(directions, 3 * H) if peepholes else None]
    while inputs[-1] is None:
        inputs.pop()
    label = id or "-".join([op, *(f"{k}={v}" for k, v in attributes.items())])
    return case(op, *inputs, outputs=OUTPUTS[op], id=label[:80], hidden_size=H, **attributes)


LENGTHS = i32(4, 2, 1)
CASES = [
    *(layer(op) for op in GATES),
    *(layer(op, bias=False, id=f"{op}-no-bias") for op in GATES),
    *(layer(op, states=True, id=f"{op}-states") for op in GATES),
    *(layer(op, direction="reverse", lengths=LENGTHS) for op in GATES),
    *(layer(op, direction=BOTH, directions=2, lengths=LENGTHS, states=True) for op in GATES),
    *(layer(op, lengths=i32(3, 0, 2), states=True, id=f"{op}-empty-sequence") for op in ("LSTM",)),
    *(layer(op, clip=0.3) for op in GATES),
    layer("GRU", linear_before_reset=1),
    layer("GRU", linear_before_reset=1, bias=False, direction=BOTH, directions=2),
    layer("LSTM", peepholes=True, id="LSTM-peepholes"),
    layer("LSTM", input_forget=1),
    layer("LSTM", activations=["HardSigmoid", "Elu", "Softsign"]),
    layer("LSTM", activations=["HardSigmoid", "LeakyRelu", "ThresholdedRelu"] * 2, direction=BOTH, directions=2,
          activation_alpha=[0.3, 0.1, 0.2, 0.25, 0.05, 0.1], activation_beta=[0.4, 0.6], id="LSTM-alpha-beta"),
    # Small numbers: gates above 1 grow from step to step, until ONNX Runtime's Softplus overflows.
    layer("GRU", x=f32(T, B, F) / 10, activations=["Softplus", "ScaledTanh"],
          activation_alpha=[0.7], activation_beta=[0.8]),
    layer("RNN", activations=["Affine"], activation_alpha=[0.7], activation_beta=[0.1]),
    layer("RNN", activations=["Relu"]),
]  # fmt: skip


@pytest.mark.parametrize(COLUMNS, CASES)
def test_recurrent_layer_equals_onnx_runtime(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, 14, outputs, domain, attributes)


@pytest.mark.parametrize("op", GATES)
def test_batch_first_layout_is_the_transposed_layer(op):
    x, w, r = f32(T, B, F), f32(1, GATES[op] * H, F), f32(1, GATES[op] * H, H)
    y, *last = run(op, x, w, r, outputs=OUTPUTS[op], hidden_size=H)
    z, *final = run(op, x.swapaxes(0, 1), w, r, outputs=OUTPUTS[op], hidden_size=H, layout=1)
    np.testing.assert_allclose(z, y.transpose(2, 0, 1, 3), rtol=1e-6)
    for a, b in zip(last, final):
        np.testing.assert_allclose(b, a.swapaxes(0, 1), rtol=1e-6)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", BOTH])
def test_dynamic_quantize_lstm_equals_onnx_runtime(direction, per_column):
    d = 2 if direction == BOTH else 1
    scale = np.abs(f32(d, 4 * H) if per_column else f32(d)) / 50
    zero = np.zeros((d, 4 * H) if per_column else d, np.int8)
    weights = [ints(np.int8, d, n, 4 * H, low=-100, high=100) for n in (F, H)]
    inputs = [f32(T, B, F), *weights, f32(d, 8 * H), None, None, None, None, scale, zero, scale * 2, zero]
    attributes = {"hidden_size": H, "direction": direction}
    check("DynamicQuantizeLSTM", inputs, 14, (True, True, True), "com.microsoft", attributes)
