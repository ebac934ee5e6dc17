"""Functions of one element, comparisons, choices and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from jax import lax

from .translate import Translator, dtype_of, lowers

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "add_any": "Add", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "erf": "Erf",
    "eq": "Equal", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual",
    "log": "Log", "logistic": "Sigmoid", "lt": "Less", "mul": "Mul", "neg": "Neg", "pow": "Pow", "sign": "Sign",
    "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
    "max": "Max", "min": "Min",
}  # fmt: skip
_LOGIC = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}


def _same(t: Translator, eqn: Any, *operands: ir.Value) -> ir.Value:
    return t.b.op(_SAME[eqn.primitive.name], *operands)


@lowers("and", "or", "xor")
def _logic(t: Translator, eqn: Any, a: ir.Value, b: ir.Value) -> ir.Value:
    boolean, bitwise = _LOGIC[eqn.primitive.name]
    return t.b.op(boolean if _is_bool(eqn) else bitwise, a, b)


@lowers("not")
def _not(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    return t.b.op("Not" if _is_bool(eqn) else "BitwiseNot", a)


def _is_bool(eqn: Any) -> bool:
    return bool(eqn.invars[0].aval.dtype == np.bool_)


@lowers("ne")
def _ne(t: Translator, eqn: Any, a: ir.Value, b: ir.Value) -> ir.Value:
    return t.b.op("Not", t.b.op("Equal", a, b))


@lowers("rem")
def _rem(t: Translator, eqn: Any, a: ir.Value, b: ir.Value) -> ir.Value:
    return t.b.op("Mod", a, b, fmod=1)


@lowers("rsqrt")
def _rsqrt(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    return t.b.op("Reciprocal", t.b.op("Sqrt", a))


@lowers("square")
def _square(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    return t.b.square(a)


@lowers("cbrt")
def _cbrt(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    root = t.b.op("Pow", t.b.op("Abs", a), t.b.like(1 / 3, a))
    return t.b.op("Mul", t.b.op("Sign", a), root)


@lowers("integer_pow")
def _integer_pow(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    power = eqn.params["y"]
    if power == 2:
        return t.b.square(a)
    if power == -1:
        return t.b.op("Reciprocal", a)
    return t.b.op("Pow", a, t.b.like(power, a))


@lowers("exp2")
def _exp2(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    return t.b.op("Pow", t.b.like(2, a), a)


@lowers("log1p")
def _log1p(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    """log(u) · x / (u − 1) with u = 1 + x, exact to rounding for small x (Kahan)."""
    b = t.b
    u = b.add(a, 1)
    small = b.sub(u, 1)
    is_zero = b.op("Equal", small, b.like(0, a))
    ratio = b.div(a, b.where(b.op("Not", is_zero), small, 1))
    finite = b.op("And", b.op("Not", is_zero), b.op("Less", b.op("Abs", u), b.like(np.finfo(_np(eqn)).max, a)))
    log = b.op("Log", u)
    return b.op("Where", is_zero, a, b.op("Where", finite, b.mul(log, ratio), log))


@lowers("expm1")
def _expm1(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    """2 · sinh(x/2) · exp(x/2) near zero, written with tanh: (exp(x) + 1) · tanh(x/2)."""
    b = t.b
    e = b.op("Exp", a)
    near = b.op("Less", b.op("Abs", a), b.like(0.5, a))
    return b.op("Where", near, b.mul(b.add(e, 1), b.op("Tanh", b.mul(a, 0.5))), b.sub(e, 1))


def _np(eqn: Any) -> Any:
    return eqn.invars[0].aval.dtype


@lowers("erfc")
def _erfc(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    return t.b.one_minus(t.b.op("Erf", a))


@lowers("round")
def _round(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    b = t.b
    if eqn.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return b.op("Round", a)
    return b.mul(b.op("Sign", a), b.op("Floor", b.add(b.op("Abs", a), 0.5)))


@lowers("is_finite")
def _is_finite(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    b = t.b
    return b.op("Equal", b.sub(a, a), b.like(0, a))  # ∞ − ∞ and NaN are no numbers


@lowers("clamp")
def _clamp(t: Translator, eqn: Any, low: ir.Value, a: ir.Value, high: ir.Value) -> ir.Value:
    return t.b.op("Min", t.b.op("Max", a, low), high)


@lowers("select_n")
def _select_n(t: Translator, eqn: Any, which: ir.Value, *cases: ir.Value) -> ir.Value:
    b = t.b
    if _is_bool(eqn):
        return b.op("Where", which, cases[1], cases[0]) if len(cases) == 2 else cases[0]
    chosen = cases[-1]
    for number, case in reversed(list(enumerate(cases[:-1]))):
        chosen = b.op("Where", b.op("Equal", which, b.like(number, which)), case, chosen)
    return chosen


@lowers("convert_element_type")
def _convert(t: Translator, eqn: Any, a: ir.Value) -> ir.Value:
    return t.b.cast(a, dtype_of(eqn.outvars[0].aval))


@lowers("copy", "copy_p", "stop_gradient", "optimization_barrier", "reduce_precision", "pvary")
def _copy(t: Translator, eqn: Any, *operands: ir.Value) -> Any:
    return list(operands)


for _name in _SAME:
    lowers(_name)(_same)
