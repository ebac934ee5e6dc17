"""Operators on integers and bools whose kernels lack a type, a form or the empty case."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto
from pfvm.runtime.ort_expand.kernels import has_kernel
from pfvm.runtime.ort_expand.node import Builder, Node, Rule

_T = TensorProto


def _top_k_uint64(node: Node, b: Builder) -> list[str] | None:
    """Flipping the highest bit maps uint64 to int64 in the same order; the values are picked by index."""
    if node.dtype(0) != _T.UINT64 or node.opset < 18:
        return None
    flipped = b.op("BitwiseXor", node.input(0), b.const(1 << 63, np.uint64))
    _, indices = b.ops(2, "TopK", b.cast(flipped, _T.INT64), node.input(1), **_attributes(node))
    return [b.op("GatherElements", node.input(0), indices, axis=node.attr("axis", -1)), indices]


def _attributes(node: Node) -> dict:
    return {name: node.attr(name) for name in ("axis", "largest", "sorted")}


def _pow(node: Node, b: Builder) -> list[str] | None:
    """An unsigned exponent as double (uint32 exactly; of a uint64 the bits that a power can show)."""
    if node.dtype(1) not in (_T.UINT32, _T.UINT64) or node.dtype(0) not in (_T.FLOAT, _T.DOUBLE):
        return None
    return [b.op("Pow", node.input(0), b.cast(node.input(1), _T.DOUBLE))]


def _bit_cast(node: Node, b: Builder) -> list[str] | None:
    """A bool is one byte, 0 or 1."""
    target = node.attr("to")
    if node.dtype(0) == _T.BOOL and target != _T.BOOL:
        return [b.op("BitCast", b.cast(node.input(0), _T.UINT8), to=target)]
    if target == _T.BOOL and node.dtype(0) != _T.BOOL:
        return [b.cast(b.op("BitCast", node.input(0), to=_T.UINT8), _T.BOOL)]
    return None


def _reduce_bool(node: Node, b: Builder) -> list[str] | None:
    """Max of bools is "any", min is "all", which unlike the kernels are defined for no elements as well."""
    if node.dtype(0) != _T.BOOL:
        return None
    is_max = node.op_type == "ReduceMax"
    marked = node.input(0) if is_max else b.op("Not", node.input(0))
    total = b.ops(
        1,
        "ReduceSum",
        b.cast(marked, _T.INT64),
        node.input(1),
        keepdims=node.attr("keepdims"),
        noop_with_empty_axes=node.attr("noop_with_empty_axes"),
    )[0]
    some = b.op("Greater", total, b.const(0, np.int64))
    return [some if is_max else b.op("Not", some)]


def _one_hot(node: Node, b: Builder) -> list[str] | None:
    """Indices, depth and values in types that there is a kernel for, picked by an int64 mask."""
    if node.schema is None or has_kernel("", "OneHot", node.since_version, node.types):
        return None
    values = node.input(2)
    mask = b.ops(
        1,
        "OneHot",
        b.cast(node.input(0), _T.INT64),
        b.cast(node.input(1), _T.INT64),
        b.ints(0, 1),
        axis=node.attr("axis"),
    )[0]
    off, on = (b.op("Gather", values, b.const(i, np.int64), axis=0) for i in (0, 1))
    return [b.op("Where", b.cast(mask, _T.BOOL), on, off)]


def _conv_integer(node: Node, b: Builder) -> list[str] | None:
    """A zero point w₀ per output channel: conv(x, w - w₀) = conv(x, w) - w₀ · conv(x, 1), exactly, in int32."""
    shape, rank = node.shape(3), node.rank(0)
    if shape is None or len(shape) != 1 or rank is None or not node.has_input(3):
        return None
    x, w, x_point = (node.input(i) for i in range(3))
    one = onnx.helper.make_tensor("one", node.dtype(1), [1], [1])
    ones = b.op("ConstantOfShape", b.op("Shape", w), value=one)
    products = b.copy(node, inputs=_without_gap([x, w, x_point]))[0]
    sums = b.copy(node, inputs=_without_gap([x, ones, x_point]))[0]
    point = b.unsqueeze(b.cast(node.input(3), _T.INT32), *range(1, rank - 1))
    return [b.op("Sub", products, b.op("Mul", point, sums))]


def _without_gap(inputs: list[str]) -> list[str]:
    return inputs if inputs[-1] else inputs[:-1]


RULES: Mapping[tuple[str, str], Rule] = {
    ("", "TopK"): _top_k_uint64,
    ("", "Pow"): _pow,
    ("", "BitCast"): _bit_cast,
    ("", "ReduceMax"): _reduce_bool,
    ("", "ReduceMin"): _reduce_bool,
    ("", "OneHot"): _one_hot,
    ("", "ConvInteger"): _conv_integer,
}
