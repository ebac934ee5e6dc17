"""Elementwise arithmetic, comparison, logic, casts and activations."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, dtype_of, sizes, val

from .registry import register, rule

aten = torch.ops.aten
Node = torch.fx.Node

_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "log": "Log", "logical_not": "Not", "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round",
    "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "mish": "Mish", "hardswish": "HardSwish",
}  # fmt: skip
# These keep an integer operand; the others turn it into a float, as torch does.
_COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


def _unary(op_type: str, op_name: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg) -> ir.Value:
        dtype = torch.bool if op_name == "logical_not" else val(node).dtype
        return e.op(op_type, e.tensor(x, dtype))

    return apply


for _name, _op in _UNARY.items():
    register(_unary(_op, _name), getattr(aten, _name), "default")


def common_dtype(*args: Arg) -> torch.dtype:
    """torch's type promotion over tensors and Python numbers."""
    operands: list[Any] = []
    for arg in args:
        if isinstance(arg, Node) and isinstance(val(arg), torch.Tensor):
            operands.append(torch.empty((1,) * val(arg).dim(), dtype=val(arg).dtype, device="meta"))
        elif isinstance(arg, Node):
            operands.append(1.0 if dtype_of(arg).is_floating_point else 1)
        else:
            operands.append(arg)
    dtype: Any = operands[0]
    if len(operands) == 1:
        return dtype.dtype if isinstance(dtype, torch.Tensor) else torch.tensor(dtype).dtype
    result = torch.result_type(operands[0], operands[1])
    for operand in operands[2:]:
        result = torch.promote_types(result, torch.result_type(operands[0], operand))
    return result


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
    quotient = e.op("Div", a, b)
    if dtype.is_floating_point:
        return e.op("Floor", quotient) if rounding_mode == "floor" else _truncate(e, quotient, dtype)
    if rounding_mode == "trunc" or not dtype.is_signed:
        return quotient
    # ONNX truncates integers: one less where the remainder (sign of the dividend) disagrees with the divisor.
    zero = e.scalar(0, dtype)
    remainder = e.op("Sub", a, e.op("Mul", quotient, b))
    signs = e.op("Xor", e.op("Less", remainder, zero), e.op("Less", b, zero))
    wrong = e.op("And", signs, e.op("Not", e.op("Equal", remainder, zero)))
    return e.op("Sub", quotient, e.cast(wrong, dtype))


@rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    return div_mode(e, node, x, y, "floor")


def _truncate(e: Emitter, x: ir.Value, dtype: torch.dtype) -> ir.Value:
    return e.op("Mul", e.op("Sign", x), e.op("Floor", e.op("Abs", x)))


@rule(aten.trunc.default)
def trunc(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return (
        _truncate(e, e.tensor(x), val(node).dtype) if val(node).is_floating_point() else e.op("Identity", e.tensor(x))
    )


@rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    a, b = e.tensor(x, dtype), e.tensor(y, dtype)
    if not dtype.is_floating_point:
        return e.op("Mod", a, b)
    return e.op("Sub", a, e.op("Mul", e.op("Floor", e.op("Div", a, b)), b))


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
    return e.op("Log", e.op("Add", e.tensor(x, dtype), e.scalar(1, dtype)))


@rule(aten.expm1.default)
def expm1(e: Emitter, node: Node, x: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Sub", e.op("Exp", e.tensor(x, dtype)), e.scalar(1, dtype))


@rule(aten.exp2.default)
def exp2(e: Emitter, node: Node, x: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Pow", e.scalar(2, dtype), e.tensor(x, dtype))


def _compare(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        dtype = common_dtype(x, y)
        if dtype == torch.bool and op_type != "Equal":
            dtype = torch.int32  # ONNX orders numbers only
        return e.op(op_type, e.tensor(x, dtype), e.tensor(y, dtype))

    return apply


for _name, _op in _COMPARE.items():
    register(_compare(_op), getattr(aten, _name), "Tensor", "Scalar")


@rule(aten.ne.Tensor, aten.ne.Scalar)
def ne(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    return e.op("Not", _compare("Equal")(e, node, x, y))


def _logical(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        return e.op(op_type, e.tensor(x, torch.bool), e.tensor(y, torch.bool))

    return apply


for _name, _op in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}.items():
    register(_logical(_op), getattr(aten, _name), "default")


def _bitwise(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        dtype = val(node).dtype
        return e.op(op_type if dtype == torch.bool else f"Bitwise{op_type}", e.tensor(x, dtype), e.tensor(y, dtype))

    return apply


for _name, _op in {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor"}.items():
    register(_bitwise(_op), getattr(aten, _name), "Tensor", "Scalar")
for _name, _op in {"__and__": "And", "__or__": "Or", "__xor__": "Xor"}.items():
    register(_bitwise(_op), getattr(aten, _name), "Tensor", "Scalar")


@rule(aten.bitwise_not.default)
def bitwise_not(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Not" if val(node).dtype == torch.bool else "BitwiseNot", e.tensor(x))


def _float_test(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg) -> ir.Value:
        dtype = dtype_of(x)
        return e.op(op_type, e.tensor(x, dtype if dtype.is_floating_point else torch.float32))

    return apply


register(_float_test("IsNaN"), aten.isnan, "default")
register(_float_test("IsInf"), aten.isinf, "default")


# Choice and bounds


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(e: Emitter, node: Node, condition: Arg, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Where", e.tensor(condition, torch.bool), e.tensor(x, dtype), e.tensor(y, dtype))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(e: Emitter, node: Node, x: Arg, mask: Arg, value: Arg) -> ir.Value:
    return e.op("Where", e.tensor(mask), e.tensor(value, val(node).dtype), e.tensor(x))


@rule(aten.clamp.default, aten.hardtanh.default)
def clamp(e: Emitter, node: Node, x: Arg, low: Arg = None, high: Arg = None) -> ir.Value:
    if node.target is aten.hardtanh.default:
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    dtype = val(node).dtype
    return e.op("Clip", e.tensor(x, dtype), e.optional(low, dtype), e.optional(high, dtype))


@rule(aten.clamp_min.default)
def clamp_min(e: Emitter, node: Node, x: Arg, low: Arg) -> ir.Value:
    return clamp(e, node, x, low, None)


@rule(aten.clamp_max.default)
def clamp_max(e: Emitter, node: Node, x: Arg, high: Arg) -> ir.Value:
    return clamp(e, node, x, None, high)


@rule(aten.clamp.Tensor)
def clamp_tensor(e: Emitter, node: Node, x: Arg, low: Arg = None, high: Arg = None) -> ir.Value:
    dtype = val(node).dtype
    result = e.tensor(x, dtype)
    if low is not None:
        result = e.op("Max", result, e.tensor(low, dtype))
    return result if high is None else e.op("Min", result, e.tensor(high, dtype))


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


# Casts and copies


@rule(aten._to_copy.default)
def to_copy(e: Emitter, node: Node, x: Arg, **_: Any) -> ir.Value:
    return e.op("Identity", e.tensor(x)) if dtype_of(x) == val(node).dtype else e.cast(e.tensor(x), val(node).dtype)


@rule(aten.clone.default)
def clone(e: Emitter, node: Node, x: Arg, **_: Any) -> ir.Value:
    return e.op("Identity", e.tensor(x))


@rule(aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
def alias(e: Emitter, node: Node, x: Arg) -> ir.Value:
    """The same tensor under another handle: no op runs in eager torch either."""
    return e.tensor(x)


@rule(aten.copy.default)
def copy(e: Emitter, node: Node, x: Arg, source: Arg, *_: Any) -> ir.Value:
    value = e.tensor(source, val(node).dtype)
    if sizes(val(source).shape) != sizes(val(node).shape):
        return e.op("Expand", value, e.shape(list(val(node).shape)))
    return value if dtype_of(source) != val(node).dtype else e.op("Identity", value)


# Activations


@rule(aten.gelu.default)
def gelu(e: Emitter, node: Node, x: Arg, approximate: str = "none") -> ir.Value:
    return e.op("Gelu", e.tensor(x), approximate=None if approximate == "none" else approximate)


@rule(aten.silu.default)
def silu(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Mul", e.tensor(x), e.op("Sigmoid", e.tensor(x)))


@rule(aten.hardsigmoid.default)
def hardsigmoid(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("HardSigmoid", e.tensor(x), alpha=1 / 6, beta=0.5)


@rule(aten.leaky_relu.default)
def leaky_relu(e: Emitter, node: Node, x: Arg, slope: float = 0.01) -> ir.Value:
    return e.op("LeakyRelu", e.tensor(x), alpha=float(slope))


@rule(aten._prelu_kernel.default)
def prelu(e: Emitter, node: Node, x: Arg, weight: Arg) -> ir.Value:
    return e.op("PRelu", e.tensor(x), e.tensor(weight))


@rule(aten.elu.default)
def elu(e: Emitter, node: Node, x: Arg, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> ir.Value:
    dtype = val(node).dtype
    if input_scale != 1:  # celu: only the negative side is scaled, so write it out
        value = e.tensor(x)
        negative = e.op("Sub", e.op("Exp", e.op("Mul", value, e.scalar(input_scale, dtype))), e.scalar(1, dtype))
        negative = e.op("Mul", negative, e.scalar(alpha * scale, dtype))
        positive = value if scale == 1 else e.op("Mul", value, e.scalar(scale, dtype))
        return e.op("Where", e.op("Greater", value, e.scalar(0, dtype)), positive, negative)
    result = e.op("Elu", e.tensor(x), alpha=float(alpha))
    return result if scale == 1 else e.op("Mul", result, e.scalar(scale, dtype))


@rule(aten.softplus.default)
def softplus(e: Emitter, node: Node, x: Arg, beta: float = 1, threshold: float = 20) -> ir.Value:
    dtype = val(node).dtype
    value = e.tensor(x)
    scaled = value if beta == 1 else e.op("Mul", value, e.scalar(beta, dtype))
    soft = e.op("Softplus", scaled)
    soft = soft if beta == 1 else e.op("Div", soft, e.scalar(beta, dtype))
    return e.op("Where", e.op("Greater", scaled, e.scalar(threshold, dtype)), value, soft)


@rule(aten.threshold.default)
def threshold(e: Emitter, node: Node, x: Arg, limit: Arg, value: Arg) -> ir.Value:
    dtype = val(node).dtype
    above = e.op("Greater", e.tensor(x), e.tensor(limit, dtype))
    return e.op("Where", above, e.tensor(x), e.tensor(value, dtype))
