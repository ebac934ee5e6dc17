"""Promise: Col2Im with dilations is right for any number of axes, where ONNX Runtime's own is for two only."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.reference
import pytest
from pfvm.compiler.importer import read_model
from pfvm.errors import UnsupportedOpError
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.ort_expand.expander import expand

CASES = {
    "one axis": ([9], [3], [2], [2], [1, 0]),
    "one axis, no overlap": ([12], [2], [3], [1], [0, 0]),
    "two axes": ([7, 6], [3, 2], [1, 2], [2, 1], [1, 0, 0, 2]),
    "three axes": ([5, 6, 7], [2, 3, 2], [2, 1, 3], [1, 2, 1], [0, 1, 2, 1, 0, 0]),
    "three axes, one dilated": ([4, 4, 6], [2, 2, 3], [1, 1, 2], [1, 1, 1], [0] * 6),
    "four axes": ([3, 4, 3, 4], [2, 2, 1, 2], [2, 1, 1, 2], [1, 2, 1, 1], [0, 0, 0, 1, 0, 0, 0, 0]),
    "three axes, no dilation": ([4, 4, 4], [2, 2, 2], [1, 1, 1], [2, 1, 1], [0] * 6),
}


def col2im(case: str, constant: bool = True) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    image, block, dilations, strides, pads = CASES[case]
    rank = len(image)
    ends = zip(image, block, dilations, strides, pads[:rank], pads[rank:])
    counts = [(n + p + q - d * (k - 1) - 1) // s + 1 for n, k, d, s, p, q in ends]
    shape = (2, 3 * math.prod(block), math.prod(counts))
    given = {"image": np.array(image), "block": np.array(block)}
    node = onnx.helper.make_node(
        "Col2Im", ["x", "image", "block"], ["y"], name="fold", dilations=dilations, strides=strides, pads=pads
    )
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("N", *shape[1:]))]
        + [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, [rank]) for n in given if not constant],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("N", 3, *image))],
        [onnx.numpy_helper.from_array(v, n) for n, v in given.items() if constant],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return model, {"x": x} | ({} if constant else given)


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case: str) -> None:
    model, feeds = col2im(case)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    got = OrtExecutable(read_model(model))(feeds)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_one_axis_may_have_sizes_of_the_call() -> None:
    model, feeds = col2im("one axis", constant=False)
    (expected,) = onnx.reference.ReferenceEvaluator(col2im("one axis")[0]).run(None, {"x": feeds["x"]})
    np.testing.assert_allclose(OrtExecutable(read_model(model))(feeds)["y"], expected, rtol=1e-5, atol=1e-5)


def test_sizes_of_the_call_are_refused_for_three_axes() -> None:
    with pytest.raises(UnsupportedOpError, match=r"'fold'.*3 spatial axes.*constants"):
        OrtExecutable(read_model(col2im("three axes", constant=False)[0]))


@pytest.mark.parametrize("case", ["two axes", "three axes, no dilation"])
def test_what_is_right_already_stays(case: str) -> None:
    assert expand(col2im(case)[0]) is None
