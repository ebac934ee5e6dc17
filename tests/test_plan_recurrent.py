"""LSTM, GRU and RNN unrolled mean what they did."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.planner import lay_out
from pfvm.compiler.plan.prepare import prepare
from pfvm.runtime.ort import OrtExecutable, evaluate

T, B, WIDTH, H = 3, 2, 5, 4


def recurrent(op: str, direction: str, opset: int = 20, **extra: object) -> onnx.ModelProto:
    """One node with random weights; lengths=True: sequences of 3 and 2 steps; peepholes=True: an LSTM's."""
    rng = np.random.default_rng(0)
    gates, d = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    shapes = {"w": (d, gates * H, WIDTH), "r": (d, gates * H, H), "b": (d, 2 * gates * H), "h0": (d, B, H)}
    lengths, peepholes = extra.pop("lengths", False), extra.pop("peepholes", False)
    names = ["x", "w", "r", "b", "lens" if lengths else "", "h0"]
    if op == "LSTM":
        shapes["c0"] = (d, B, H)
        names.append("c0")
        if peepholes:
            shapes["p"] = (d, 3 * H)
            names.append("p")
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    weights += [numpy_helper.from_array(np.array([3, 2], np.int32), "lens")] if lengths else []
    outputs = ["y", "yh", *(["yc"] if op == "LSTM" else [])]
    node = helper.make_node(op, names, outputs, direction=direction, hidden_size=H, **extra)
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, [T, B, WIDTH])
    graph = helper.make_graph([node], "g", [source], results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "extra"),
    [
        ("LSTM", {}),
        ("LSTM", {"peepholes": True, "lengths": True}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1, "lengths": True}),
        ("RNN", {}),
        ("LSTM", {"opset": 11}),
    ],
)
def test_unrolled_means_the_same(op: str, extra: dict[str, object], direction: str) -> None:
    source = read_model(recurrent(op, direction, **extra))  # type: ignore[arg-type]
    unrolled = prepare(source, {}, evaluate)
    assert op not in {node.op_type for node in unrolled.graph}
    feeds = {"x": np.random.default_rng(1).standard_normal((T, B, WIDTH)).astype(np.float32)}
    expected, found = OrtExecutable(source)(feeds), OrtExecutable(unrolled)(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extra", [{"clip": 1.0}, {"activations": ["Relu", "Tanh", "Tanh"]}])
def test_forms_that_are_not_unrolled_run_gathered(extra: dict[str, object]) -> None:
    plan = lay_out(read_model(recurrent("LSTM", "forward", **extra)), {}, evaluate)  # type: ignore[arg-type]
    assert [node.metadata_props.get("pfvm.gathered") for node in plan.model.graph if node.op_type == "LSTM"] == ["1"]


def test_beyond_the_limit_it_runs_gathered() -> None:
    plan = lay_out(read_model(recurrent("GRU", "forward")), {"unroll_limit": 10}, evaluate)
    assert "GRU" in {node.op_type for node in plan.model.graph}
