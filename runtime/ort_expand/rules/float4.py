"""Casts and (de)quantization of float4e2m1, whose values are read and written as codes; see ort_expand/float4.py."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto
from pfvm.runtime.ort_expand.float4 import MAGNITUDES, table
from pfvm.runtime.ort_expand.node import Builder, Node, Rule

_T = TensorProto
_FLOAT4 = _T.FLOAT4E2M1


def _cast(node: Node, b: Builder) -> list[str] | None:
    """From float4 by a table; to it by counting the midpoints below |x|."""
    target = node.attr("to")
    if node.dtype(0) == _FLOAT4 and target != _FLOAT4:
        values = b.op("Gather", b.const(table()), b.cast(node.input(0), _T.INT32))
        return [values if target == _T.FLOAT else b.cast(values, target)]
    if target == _FLOAT4 and node.dtype(0) in (_T.FLOAT, _T.FLOAT16, _T.BFLOAT16, _T.DOUBLE):
        return [b.cast(_codes(node.input(0), node.dtype(0), b), _FLOAT4)]
    return None


def _codes(x: str, dtype: int, b: Builder) -> str:
    """The nearest value's code as uint8; a tie goes to the even code, what is too large to 6."""
    wide = x if dtype in (_T.FLOAT, _T.DOUBLE) else b.cast(x, _T.FLOAT)
    dtype = dtype if dtype in (_T.FLOAT, _T.DOUBLE) else _T.FLOAT
    size = b.op("Abs", wide)
    passed = []
    for code, (low, high) in enumerate(itertools.pairwise(MAGNITUDES)):
        middle = b.scalar((low + high) / 2, dtype)
        # From an odd code up, the tie goes up to the even one.
        compare = "GreaterOrEqual" if code % 2 else "Greater"
        passed.append(b.cast(b.op(compare, size, middle), _T.INT32))
    code_of_size = passed[0]
    for each in passed[1:]:
        code_of_size = b.op("Add", code_of_size, each)
    return b.cast(b.op("Add", code_of_size, _sign_bit(wide, dtype, b)), _T.UINT8)


def _sign_bit(x: str, dtype: int, b: Builder) -> str:
    """8 where x is negative, -0 included: its reciprocal is -inf."""
    inverse = b.op("Div", b.scalar(1, dtype), x)
    negative = b.op("Less", inverse, b.scalar(0, dtype))
    infinite = b.op("Less", x, b.scalar(0, dtype))  # 1 / -inf is -0, which is not less than 0
    return b.op("Mul", b.cast(b.op("Or", negative, infinite), _T.INT32), b.const(8, np.int32))


def _dequantize(node: Node, b: Builder) -> list[str] | None:
    """Twice a float4 is a whole number, so int8 kernels do it with half the scale. The zero point can only be 0."""
    if node.dtype(0) != _FLOAT4:
        return None
    value = b.cast(node.input(0), _T.FLOAT)  # by the rule above
    doubled = b.cast(b.op("Add", value, value), _T.INT8)
    half = b.op("Mul", node.input(1), b.scalar(0.5, node.dtype(1)))
    return b.copy(node, inputs=[doubled, half])


def _quantize(node: Node, b: Builder) -> list[str] | None:
    """x / scale, one scale for all or one per position on an axis, cast to float4. The zero point can only be 0."""
    rank, scale = node.rank(0), node.shape(1)
    if _FLOAT4 not in (node.dtype(2), node.attr("output_dtype", 0)) or node.attr("block_size", 0):
        return None
    if rank is None or scale is None or len(scale) > 1:
        return None
    axis = node.attr("axis", 1) % rank if rank else 0
    aligned = b.unsqueeze(node.input(1), *range(1, rank - axis)) if scale and rank - axis > 1 else node.input(1)
    return [b.cast(b.op("Div", node.input(0), aligned), _FLOAT4)]


RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Cast"): _cast,
    ("", "DequantizeLinear"): _dequantize,
    ("", "QuantizeLinear"): _quantize,
}
