"""Comparisons, logic, bitwise operators and Where."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.elementwise import binary, unary
from pfvm.runtime.xla.registry import register


def where(ctx: Context, node: ir.Node, condition: Any, a: Any, b: Any) -> Any:
    return ctx.xp.where(condition, a, b)


def bit_shift(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    """Shifting by the width of the type or more gives zero, or the sign for a signed right shift."""
    shift = ctx.xp.left_shift if ctx.attr("direction") == "LEFT" else ctx.xp.right_shift
    width = a.dtype.itemsize * 8
    shifted = shift(a, ctx.xp.minimum(b, ctx.xp.asarray(width - 1, b.dtype)))
    if ctx.attr("direction") == "RIGHT" and a.dtype.kind == "i":
        return shifted
    return ctx.xp.where(b < width, shifted, ctx.xp.zeros((), a.dtype))


for _op, _function in {
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}.items():
    register(_op, place="host")(binary(_function))
register("Not", place="host")(unary("logical_not"))
register("BitwiseNot", place="host")(unary("invert"))
register("Where", place="host")(where)
register("BitShift", place="host")(bit_shift)
