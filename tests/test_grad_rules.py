"""Promise: a gradient rule written in ONNX says the same as jax.vjp of the operator's lowering, and as differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from onnx import TensorProto, helper, numpy_helper
from pfvm.compiler.grad import backward
from pfvm.compiler.signature import read_manifest

OPSET = 20


def model(
    op: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray], **attributes: Any
) -> onnx.ModelProto:
    """loss = Σ r · op(parameters and constants, in the order given), with weights r that differ by element."""
    order = attributes.pop("order", [*arrays, *constants])
    nodes = [
        helper.make_node(op, order, ["y"], name="it", **attributes),
        helper.make_node("Shape", ["y"], ["dims"]),
        helper.make_node("Size", ["y"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["floats"], to=TensorProto.DOUBLE),
        helper.make_node("Sin", ["floats"], ["waves"]),
        helper.make_node("Reshape", ["waves", "dims"], ["weights"]),
        helper.make_node("Mul", ["y", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
    ]
    tensors = {**arrays, **constants, "zero": np.array(0), "one": np.array(1)}
    graph = helper.make_graph(
        nodes, "g", [], [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def rand(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def cases() -> Iterator[Any]:
    x, y, positive = rand(3, 4), rand(4), rand(3, 4, low=0.2)
    for op in (
        "Abs", "Neg", "Exp", "Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Selu", "Erf", "Sin", "Cos", "Softplus",
        "Softsign", "HardSigmoid", "HardSwish", "Gelu", "Softmax", "LogSoftmax", "Identity", "Transpose", "Flatten",
    ):  # fmt: skip
        yield op, {"x": 2 * x}, {}, {}
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield op, {"x": positive}, {}, {}
    for op in ("Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"):
        yield op, {"a": x, "b": y}, {}, {}
    yield "Div", {"a": x, "b": positive[0]}, {}, {}
    yield "Pow", {"a": positive, "b": y}, {}, {}
    yield "Pow", {"a": x}, {"b": np.array(3.0)}, {}
    yield "Gelu", {"x": x}, {}, {"approximate": "tanh"}
    yield "PRelu", {"x": x, "slope": y}, {}, {}
    yield "Clip", {"x": x}, {"low": np.array(-0.5), "high": np.array(0.5)}, {}
    yield "Where", {"a": x, "b": y}, {"c": x > 0.1}, {"order": ["c", "a", "b"]}
    for a, b in (((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((2, 3, 4), (2, 4, 5)), ((5, 1, 3, 4), (2, 4, 5)),
                 ((4,), (4, 2)), ((2, 3, 4), (4,)), ((4,), (4,))):  # fmt: skip
        yield "MatMul", {"a": rand(*a), "b": rand(*b)}, {}, {}
    for ta, tb in ((0, 0), (1, 0), (0, 1), (1, 1)):
        a, b = rand(*((4, 3) if ta else (3, 4))), rand(*((5, 4) if tb else (4, 5)))
        yield "Gemm", {"a": a, "b": b, "c": rand(5)}, {}, {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 2.0}
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
               "ReduceLogSumExp"):  # fmt: skip
        yield op, {"x": rand(2, 3, 4)}, {"axes": ints(-1, 0)}, {"keepdims": 0}
        yield op, {"x": rand(2, 3, 4)}, {}, {"keepdims": 0}
        yield op, {"x": rand(2, 3, 4)}, {"axes": ints(1)}, {"keepdims": 1}
    yield "CumSum", {"x": x}, {"axis": np.array(1)}, {"exclusive": 1, "reverse": 1}
    yield "Concat", {"a": x, "b": rand(2, 4)}, {}, {"axis": 0}
    yield "Expand", {"x": y}, {"shape": ints(2, 3, 4)}, {}
    yield "Slice", {"x": x}, {"s": ints(1), "e": ints(9), "a": ints(1)}, {}
    yield "Slice", {"x": x}, {"s": ints(-1, 0), "e": ints(-9, 3), "a": ints(1, 0), "t": ints(-2, 2)}, {}
    yield "Pad", {"x": x}, {"p": ints(1, -1, 0, 2)}, {}
    yield "Pad", {"x": x}, {"p": ints(1, 2, 0, 1)}, {"mode": "reflect"}
    yield "Gather", {"x": rand(2, 5, 3)}, {"i": np.array([[0, -1], [3, 0]])}, {"axis": 1}
    yield "Gather", {"x": x}, {"i": np.array(1)}, {}
    yield "GatherElements", {"x": x}, {"i": np.array([[0, 0, 3], [1, 1, 1]])}, {"axis": 1}
    yield "GatherND", {"x": x}, {"i": np.array([[0, 1], [2, 2], [0, 1]])}, {}
    scatter = {"i": np.array([[0, 3], [1, 2]])}
    yield "ScatterElements", {"x": x, "u": rand(2, 2)}, scatter, {"axis": 1, "order": ["x", "i", "u"]}
    yield (
        "ScatterND",
        {"x": x, "u": rand(2, 4)},
        {"i": ints(2, 0)[:, None]},
        {"reduction": "add", "order": ["x", "i", "u"]},
    )
    yield "LayerNormalization", {"x": rand(2, 3, 4), "s": rand(3, 4), "b": rand(3, 4)}, {}, {"axis": 1}
    mean, variance = rand(3), rand(3, low=0.5)
    statistics = {"x": rand(2, 3, 4), "s": rand(3), "b": rand(3)}
    yield "BatchNormalization", statistics, {"mean": mean, "var": variance}, {}
    for w, options in (
        ((4, 3, 3), {"strides": [2], "pads": [1, 0]}), ((4, 1, 2), {"group": 3, "dilations": [2]}),
        ((4, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2]}), ((4, 3, 1), {}),
    ):  # fmt: skip
        w = (3, *w[1:]) if options.get("group") == 3 else w
        yield "Conv", {"x": rand(2, 3, 8), "w": rand(*w), "b": rand(w[0])}, {}, options
    for options in ({"strides": [2], "pads": [1, 0], "output_padding": [1]}, {"group": 3, "dilations": [2]}):
        yield "ConvTranspose", {"x": rand(2, 3, 5), "w": rand(3, 2, 3)}, {}, options
    image = {"x": rand(2, 2, 7, 6)}
    for op in ("MaxPool", "AveragePool"):
        yield op, image, {}, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}
        yield op, image, {}, {"kernel_shape": [2, 2], "strides": [2, 2]}
        yield op, image, {}, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    yield "GlobalAveragePool", image, {}, {}
    yield "GlobalMaxPool", image, {}, {}
    # no rule of their own: only the general way
    yield "Einsum", {"a": rand(2, 3), "b": rand(3, 4)}, {}, {"equation": "ij,jk->ki"}
    yield "InstanceNormalization", {"x": rand(2, 3, 4), "s": rand(3), "b": rand(3)}, {}, {}
    yield "ReduceProd", {"x": rand(2, 3)}, {"axes": ints(1)}, {}
    yield "Tile", {"x": x}, {"r": ints(2, 3)}, {}
    yield "DepthToSpace", {"x": rand(1, 4, 2, 2)}, {}, {"blocksize": 2}
    yield "LpNormalization", {"x": x}, {}, {}
    yield (
        "Resize",
        {"x": rand(1, 2, 4, 5)},
        {"roi": np.zeros(0), "s": np.array([1, 1, 2, 1.5], np.float32)},
        {"mode": "linear"},
    )
    yield "Det", {"x": rand(2, 2)}, {}, {}


def gradients(proto: onnx.ModelProto, names: list[str]) -> tuple[dict[str, np.ndarray], Any]:
    """Gradients by the parameters `names`, and the step that computed them."""
    step = pfvm.grad(proto, "loss", lr=1.0, params=names)
    run = pfvm.load(step, "xla:cpu")
    out = run({})
    old = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    found = {e.name: old[e.name] - out[e.output] for e in read_manifest(ir.from_proto(step)) if e.output}
    return found, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "arrays", "constants", "attributes"), [pytest.param(*c, id=f"{i}-{c[0]}") for i, c in enumerate(cases())]
)
def test_a_rule_agrees_with_the_general_way_and_with_differences(
    op: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray], attributes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    proto = model(op, arrays, constants, **attributes)
    found, run = gradients(proto, list(arrays))
    assert set(found) == set(arrays)
    for name, gradient in found.items():
        direction = np.cos(np.arange(gradient.size)).reshape(gradient.shape)
        up, down = (run({name: arrays[name] + step * direction})["loss"] for step in (1e-6, -1e-6))
        slope = (up - down) / 2e-6
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-6, err_msg=name)
    rule = backward.lookup
    if rule(op) is None:
        return
    monkeypatch.setattr(backward, "lookup", lambda each: None if each == op else rule(each))
    for name, gradient in gradients(proto, list(arrays))[0].items():
        np.testing.assert_allclose(gradient, found[name], rtol=1e-8, atol=1e-9, err_msg=name)
