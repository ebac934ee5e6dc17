"""tpu-pair-columns: the same numbers from pairs of columns, whatever the sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import assert_same_but_for_rounding, ops, run_passes

PASS = "tpu-pair-columns"
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}


def net(
    first: tuple[int, ...], second: tuple[int, ...], image: tuple[int, int], *, relu: bool = True, bias: bool = True,
    pool: bool = True, constant: bool = True, pads: tuple[int, ...] = (1, 1, 1, 1), **attributes: list[int],
) -> onnx.ModelProto:  # fmt: skip
    """conv → relu → conv → relu → pool, of weights [O, I, kh, kw]."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal(first), "a": rng.standard_normal(first[0]),
        "v": rng.standard_normal(second) / 4, "b": rng.standard_normal(second[0]),
    }  # fmt: skip
    value, nodes = "x", []
    for i, (weight, shift, own) in enumerate(
        [("w", "a", {"pads": [1, 1, 1, 1]}), ("v", "b", {"pads": list(pads), **attributes})]
    ):
        nodes.append(helper.make_node("Conv", [value, weight, *([shift] if bias else [])], [f"c{i}"], **own))
        value = f"c{i}"
        if relu:
            nodes.append(helper.make_node("Relu", [value], [f"r{i}"]))
            value = f"r{i}"
    if pool:
        nodes.append(helper.make_node("MaxPool", [value], ["p"], **POOL))
        value = "p"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    used = ["w", "v", *(["a", "b"] if bias else [])]
    tensors = [numpy_helper.from_array(arrays[name].astype(np.float32), name) for name in used]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, first[1], *image])]
    if not constant:
        inputs += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in tensors]
        tensors = []
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_with_a_pool_behind_rows_are_taken_apart_too(relu: bool, bias: bool, constant: bool) -> None:
    source = net((5, 3, 3, 3), (7, 5, 3, 3), (6, 8), relu=relu, bias=bias, constant=constant)
    compiled = run_passes(source, PASS)
    assert "MaxPool" not in ops(compiled)
    assert (ops(compiled).count("Conv"), ops(compiled).count("Max")) == (3, 2)
    assert_same_but_for_rounding(source, compiled)


@pytest.mark.parametrize(
    ("first", "second", "image", "pads"),
    [
        ((5, 3, 3, 3), (7, 5, 3, 3), (6, 8), (1, 1, 1, 1)),
        ((4, 1, 3, 3), (130, 4, 3, 3), (5, 10), (1, 1, 1, 1)),
        ((130, 2, 3, 3), (3, 130, 1, 3), (5, 4), (0, 1, 0, 1)),
        ((5, 3, 3, 3), (2, 5, 5, 3), (9, 6), (2, 1, 2, 1)),
        ((6, 3, 1, 3), (4, 6, 3, 3), (4, 6), (0, 1, 0, 1)),
    ],
)
def test_without_a_pool_the_pairs_are_turned_back(
    first: tuple[int, ...], second: tuple[int, ...], image: tuple[int, int], pads: tuple[int, ...]
) -> None:
    source = net(first, second, image, pool=False, pads=pads)
    compiled = run_passes(source, PASS)
    assert ops(compiled).count("Conv") == 2
    assert "Transpose" in ops(compiled)
    assert_same_but_for_rounding(source, compiled)


@pytest.mark.parametrize(
    "source",
    [
        net((130, 3, 3, 3), (130, 130, 3, 3), (4, 4)),
        net((5, 3, 3, 3), (7, 5, 3, 3), (6, 7), pool=False),
        net((5, 3, 3, 3), (7, 5, 3, 3), (6, 8), strides=[2, 2]),
        net((5, 3, 3, 3), (7, 5, 3, 3), (6, 8), dilations=[2, 2]),
        net((5, 3, 3, 3), (7, 5, 3, 3), (6, 8), pads=(0, 0, 0, 0)),
        net((4, 3, 3, 3), (8, 1, 3, 3), (6, 8), group=4),  # type: ignore[arg-type]
    ],
    ids=["wide enough", "odd", "strides", "dilations", "no padding", "groups"],
)
def test_other_convolutions_stay(source: onnx.ModelProto) -> None:
    assert ops(run_passes(source, PASS)) == ops(run_passes(source, "eliminate-dead-code"))


def test_values_that_others_read_stay() -> None:
    source = net((5, 3, 3, 3), (7, 5, 3, 3), (6, 8))
    source.graph.output.append(helper.make_tensor_value_info("r0", TensorProto.FLOAT, [2, 5, 6, 8]))
    assert ops(run_passes(source, PASS)).count("Conv") == 2
    pooled = net((5, 3, 3, 3), (7, 5, 3, 3), (6, 8))
    pooled.graph.output.append(helper.make_tensor_value_info("r1", TensorProto.FLOAT, [2, 7, 6, 8]))
    compiled = run_passes(pooled, PASS)
    assert ops(compiled).count("MaxPool") == 1  # the pairs are turned back for the other reader
    assert_same_but_for_rounding(pooled, compiled)
