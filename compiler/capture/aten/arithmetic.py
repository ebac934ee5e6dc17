"""Elementwise arithmetic and mathematical functions."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .registry import register, rule

aten = torch.ops.aten
Node = torch.fx.Node

_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "log": "Log", "logical_not": "Not", "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round",
    "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "mish": "Mish",
}  # fmt: skip


def _unary(op_type: str, op_name: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg) -> ir.Value:
        dtype = torch.bool if op_name == "logical_not" else val(node).dtype
        if op_type in ("Ceil", "Floor", "Round") and not dtype.is_floating_point:
            return e.op("Identity", e.tensor(x))
        return e.op(op_type, e.tensor(x, dtype))

    return apply


for _name, _op in _UNARY.items():
    register(_unary(_op, _name), getattr(aten, _name), "default")


def _arithmetic(op_type: str, on_bool: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        dtype = val(node).dtype
        return e.op(on_bool if dtype == torch.bool else op_type, e.tensor(x, dtype), e.tensor(y, dtype))

    return apply


register(_arithmetic("Mul", "And"), aten.mul, "Tensor", "Scalar")
register(_arithmetic("Max", "Or"), aten.maximum, "default")
register(_arithmetic("Min", "And"), aten.minimum, "default")


def _add(op_type: str, on_bool: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg, alpha: Arg = 1) -> ir.Value:
        dtype = val(node).dtype
        right = e.tensor(y, dtype)
        if isinstance(alpha, Node) or alpha != 1:
            right = e.op("Mul", right, e.tensor(alpha, dtype))
        return e.op(on_bool if dtype == torch.bool else op_type, e.tensor(x, dtype), right)

    return apply


register(_add("Add", "Or"), aten.add, "Tensor", "Scalar")
register(_add("Sub", "Xor"), aten.sub, "Tensor", "Scalar")


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(e: Emitter, node: Node, x: Arg, y: Arg, alpha: Arg = 1) -> ir.Value:
    return _add("Sub", "Xor")(e, node, y, x, alpha)


@rule(aten.div.Tensor, aten.div.Scalar)
def div(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Div", e.tensor(x, dtype), e.tensor(y, dtype))


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(e: Emitter, node: Node, x: Arg, y: Arg, rounding_mode: str | None = None) -> ir.Value:
    if rounding_mode is None:
        return div(e, node, x, y)
    dtype = val(node).dtype
    a, b = e.tensor(x, dtype), e.tensor(y, dtype)
    if dtype.is_floating_point:
        return _truncate(e, e.op("Div", a, b)) if rounding_mode == "trunc" else _float_floor_divide(e, a, b, dtype)
    quotient = e.op("Div", a, b)
    if rounding_mode == "trunc" or not dtype.is_signed:
        return quotient
    # ONNX truncates integers: one less where the remainder disagrees with the divisor.
    wrong = _disagrees(e, e.op("Sub", a, e.op("Mul", quotient, b)), b, dtype)
    return e.op("Sub", quotient, e.cast(wrong, dtype))


def _disagrees(e: Emitter, remainder: ir.Value, divisor: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Whether a truncated division's remainder, which has the dividend's sign, is not zero and not of the divisor's."""
    zero = e.scalar(0, dtype)
    signs = e.op("Xor", e.op("Less", remainder, zero), e.op("Less", divisor, zero))
    return e.op("And", signs, e.op("Not", e.op("Equal", remainder, zero)))


def _float_floor_divide(e: Emitter, a: ir.Value, b: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Python's: from the exact remainder, because floor(1.0 / 0.1) is 10 where 1.0 // 0.1 is 9."""
    remainder = e.op("Mod", a, b, fmod=1)
    quotient = e.op("Div", e.op("Sub", a, remainder), b)
    quotient = e.op("Sub", quotient, e.cast(_disagrees(e, remainder, b, dtype), dtype))
    whole = e.op("Round", quotient)  # it is a whole number but for rounding
    return e.op("Where", e.op("Equal", b, e.scalar(0, dtype)), e.op("Div", a, b), whole)


@rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    return div_mode(e, node, x, y, "floor")


def _truncate(e: Emitter, x: ir.Value) -> ir.Value:
    return e.op("Mul", e.op("Sign", x), e.op("Floor", e.op("Abs", x)))


@rule(aten.trunc.default)
def trunc(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return _truncate(e, e.tensor(x)) if val(node).is_floating_point() else e.op("Identity", e.tensor(x))


@rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    a, b = e.tensor(x, dtype), e.tensor(y, dtype)
    if not dtype.is_floating_point:
        return e.op("Mod", a, b)
    rest = e.op("Mod", a, b, fmod=1)
    return e.op("Add", rest, e.op("Mul", b, e.cast(_disagrees(e, rest, b, dtype), dtype)))


@rule(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Mod", e.tensor(x, dtype), e.tensor(y, dtype), fmod=1)


@rule(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Pow", e.tensor(x, dtype), e.tensor(y, dtype))


@rule(aten.rsqrt.default)
def rsqrt(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Reciprocal", e.op("Sqrt", e.tensor(x, val(node).dtype)))


@rule(aten.square.default)
def square(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Mul", e.tensor(x), e.tensor(x))


def _scaled_log(base: float) -> Any:
    def apply(e: Emitter, node: Node, x: Arg) -> ir.Value:
        dtype = val(node).dtype
        return e.op("Mul", e.op("Log", e.tensor(x, dtype)), e.scalar(1 / math.log(base), dtype))

    return apply


register(_scaled_log(2), aten.log2, "default")
register(_scaled_log(10), aten.log10, "default")


@rule(aten.log1p.default)
def log1p(e: Emitter, node: Node, x: Arg) -> ir.Value:
    dtype = val(node).dtype
    value = e.tensor(x, dtype)
    if dtype == torch.float64:
        return _log1p_of_doubles(e, value)
    near = e.op(
        "Atanh", e.op("Div", value, e.op("Add", value, e.scalar(2, dtype)))
    )  # log(1 + x) = 2 atanh(x / (2 + x))
    far = e.op("Log", e.op("Add", value, e.scalar(1, dtype)))  # loses the digits of a small x
    is_near = e.op("Less", e.op("Abs", value), e.scalar(0.5, dtype))
    return e.op("Where", is_near, e.op("Mul", near, e.scalar(2, dtype)), far)


def _log1p_of_doubles(e: Emitter, x: ir.Value) -> ir.Value:
    """log(u) · x / (u - 1) for u = 1 + x, in which the rounding of u cancels. ONNX Runtime has no Atanh of doubles."""
    one = e.scalar(1, torch.float64)
    u = e.op("Add", x, one)
    rounded = e.op("Sub", u, one)
    ratio = e.op("Div", x, e.op("Where", e.op("Equal", u, one), one, rounded))
    is_plain = e.op("Or", e.op("Equal", u, one), e.op("IsInf", u))
    return e.op("Where", is_plain, x, e.op("Mul", e.op("Log", u), ratio))


@rule(aten.expm1.default)
def expm1(e: Emitter, node: Node, x: Arg) -> ir.Value:
    dtype = val(node).dtype
    value = e.tensor(x, dtype)  # tanh(x / 2) (exp(x) + 1) keeps the digits of a small x
    half = e.op("Tanh", e.op("Mul", value, e.scalar(0.5, dtype)))
    return e.op("Mul", half, e.op("Add", e.op("Exp", value), e.scalar(1, dtype)))


@rule(aten.erfc.default)
def erfc(e: Emitter, node: Node, x: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Sub", e.scalar(1, dtype), e.op("Erf", e.tensor(x, dtype)))


@rule(aten.hypot.default)
def hypot(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    a, b = e.tensor(x, dtype), e.tensor(y, dtype)
    return e.op("Sqrt", e.op("Add", e.op("Mul", a, a), e.op("Mul", b, b)))


@rule(aten.round.decimals)
def round_decimals(e: Emitter, node: Node, x: Arg, *, decimals: int) -> ir.Value:
    factor = e.scalar(10.0 ** abs(decimals), val(node).dtype)
    there, back = ("Mul", "Div") if decimals >= 0 else ("Div", "Mul")
    return e.op(back, e.op("Round", e.op(there, e.tensor(x), factor)), factor)


@rule(aten.exp2.default)
def exp2(e: Emitter, node: Node, x: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Pow", e.scalar(2, dtype), e.tensor(x, dtype))


@rule(aten.atan2.default)
def atan2(e: Emitter, node: Node, y: Arg, x: Arg) -> ir.Value:
    """atan(y / x), plus or minus pi left of the y axis. Signed zeros of y count as positive."""
    dtype = val(node).dtype
    a, b, zero = e.tensor(y, dtype), e.tensor(x, dtype), e.scalar(0, dtype)
    angle = e.op("Atan", e.op("Div", a, b))
    below = e.op("Less", a, zero)
    half_turn = e.op("Where", below, e.scalar(-math.pi, dtype), e.scalar(math.pi, dtype))
    result = e.op("Where", e.op("Less", b, zero), e.op("Add", angle, half_turn), angle)
    origin = e.op("And", e.op("Equal", a, zero), e.op("Equal", b, zero))
    return e.op("Where", origin, zero, result)
