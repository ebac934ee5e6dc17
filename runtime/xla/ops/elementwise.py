"""Arithmetic and unary mathematics, broadcast the NumPy way."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context, TraceInstead
from pfvm.runtime.xla.open_dims import is_open
from pfvm.runtime.xla.registry import register


def align_legacy(ctx: Context, a: Any, b: Any) -> Any:
    """Before opset 7, `axis` says which axis of `a` the first axis of `b` lies on; returns `b` reshaped for that."""
    axis = ctx.attr("axis", None) if ctx.opset < 7 and ctx.attr("broadcast", 0) else None
    if axis is None:
        return b
    axis = axis + a.ndim if axis < 0 else axis
    return b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


def binary(name: str) -> Any:
    """A rule from the name of a function of ctx.xp of two operands."""

    def rule(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
        return _combined(ctx, name, a, align_legacy(ctx, a, b))

    return rule


# What jax.numpy's functions come to where nothing is promoted, for a quarter of their time.
_DIRECT = {"add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "maximum": lax.max, "minimum": lax.min}


def _combined(ctx: Context, name: str, a: Any, b: Any) -> Any:
    direct = None if ctx.on_host else _DIRECT.get(name)
    if direct is None or a.dtype != b.dtype or a.dtype.kind != "f" or not (a.shape == b.shape or b.ndim == 0):
        return getattr(ctx.xp, name)(a, b)
    return direct(a, b)


def div(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    """Integers truncate towards zero, as in C."""
    b = align_legacy(ctx, a, b)
    if is_open(a) or is_open(b):
        return np.asarray(np.floor_divide(a, b))  # of sizes, which are not negative
    if a.dtype.kind not in "iu" or _is_float(a):
        return ctx.xp.divide(a, b)
    if ctx.on_host:
        quotient, remainder = np.divmod(a, b)
        return quotient + ((remainder != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    a, b = jnp.broadcast_arrays(a, b)
    return lax.div(a, b)


def mod(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    """fmod=1: the sign of the dividend (C); fmod=0: the sign of the divisor (Python)."""
    return ctx.xp.fmod(a, b) if ctx.attr("fmod") else ctx.xp.mod(a, b)


def power(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    """The result has the base's type, whatever the exponent's."""
    b = align_legacy(ctx, a, b)
    if ctx.on_host:
        if not _is_float(a) and (b < 0).any():  # numpy refuses those
            raise TraceInstead
        return np.power(a, b.astype(a.dtype) if _is_float(a) else b).astype(a.dtype)
    if _is_float(a):
        known = ctx.host_value(ctx.node.inputs[1], b) if ctx.node.inputs[1] is not None else None
        if known is not None and known.size == 1 and float(known.reshape(-1)[0]) in (1.0, 2.0, 3.0):
            # A multiplication instead of a call of pow, where the exponent is a constant of the model.
            result = functools.reduce(jnp.multiply, [a] * int(known.reshape(-1)[0]))
            return jnp.broadcast_to(result, jnp.broadcast_shapes(a.shape, b.shape))
        return jnp.power(a, b.astype(a.dtype))
    if not _is_float(b):
        return _whole_power(a, b.astype(a.dtype))
    exact = jnp.power(a.astype(jnp.float64), b.astype(jnp.float64))
    nearest = jnp.round(exact)
    # XLA's pow may miss a whole number by an ulp, which truncation would turn into an error of one.
    whole = jnp.where(jnp.abs(exact - nearest) <= 1e-12 * jnp.abs(nearest), nearest, exact)
    limits = np.iinfo(a.dtype)  # out of range: the smallest number, as x86 converts
    return jnp.where((whole >= limits.min) & (whole < limits.max), whole, limits.min).astype(a.dtype)


def _whole_power(a: Any, b: Any) -> Any:
    """A negative power is cut off to 0, except those of 1 and -1."""
    power = jnp.power(a, jnp.where(b < 0, b & 1, b) if jnp.issubdtype(b.dtype, jnp.signedinteger) else b)
    return jnp.where((b < 0) & (jnp.abs(a) != 1), jnp.zeros((), a.dtype), power)


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _variadic(name: str) -> Any:
    def rule(ctx: Context, node: ir.Node, *operands: Any) -> Any:
        return functools.reduce(functools.partial(_combined, ctx, name), operands)

    return rule


def mean(ctx: Context, node: ir.Node, *operands: Any) -> Any:
    return functools.reduce(jnp.add, operands) / np.asarray(len(operands), operands[0].dtype)


def unary(name: str) -> Any:
    """A rule from the name of a function of ctx.xp of one operand."""

    def rule(ctx: Context, node: ir.Node, x: Any) -> Any:
        return getattr(ctx.xp, name)(x)

    return rule


def unary_on_device(function: Any) -> Any:
    """A rule from a jax function of one operand."""

    def rule(ctx: Context, node: ir.Node, x: Any) -> Any:
        return function(x)

    return rule


def reciprocal(ctx: Context, node: ir.Node, x: Any) -> Any:
    return ctx.xp.divide(np.asarray(1, x.dtype), x)


def is_inf(ctx: Context, node: ir.Node, x: Any) -> Any:
    positive = jnp.isposinf(x) if ctx.attr("detect_positive", 1) else False
    negative = jnp.isneginf(x) if ctx.attr("detect_negative", 1) else False
    return jnp.broadcast_to(jnp.logical_or(positive, negative), x.shape)


def clip(ctx: Context, node: ir.Node, x: Any, low: Any = None, high: Any = None) -> Any:
    """Bounds are attributes before opset 11. NaN stays NaN; where the bounds cross, the upper one wins."""
    if ctx.opset < 11:
        low, high = (
            None if v is None else np.asarray(v, x.dtype) for v in (ctx.attr("min", None), ctx.attr("max", None))
        )
    if low is not None:
        x = _combined(ctx, "maximum", x, low.reshape(()))
    if high is not None:
        x = _combined(ctx, "minimum", x, high.reshape(()))
    return x


for _op, _function in {"Add": "add", "Sub": "subtract", "Mul": "multiply"}.items():
    register(_op, place="host")(binary(_function))
register("Div", place="host")(div)
register("Mod", place="host")(mod)
register("Pow", place="host")(power)
for _op, _function in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items():
    register(_op, place="host")(_variadic(_function))
register("Mean")(mean)
register("Clip", place="host")(clip)
register("Reciprocal", place="host")(reciprocal)
for _op, _function in {
    "Abs": "abs",
    "Neg": "negative",
    "Sign": "sign",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Log": "log",
    "Sin": "sin",
    "Cos": "cos",
    "IsNaN": "isnan",
}.items():
    register(_op, place="host")(unary(_function))
for _op, _implementation in {
    "Tan": jnp.tan,
    "Asin": jnp.arcsin,
    "Acos": jnp.arccos,
    "Atan": jnp.arctan,
    "Sinh": jnp.sinh,
    "Cosh": jnp.cosh,
    "Asinh": jnp.arcsinh,
    "Acosh": jnp.arccosh,
    "Atanh": jnp.arctanh,
    "Erf": jax.scipy.special.erf,
}.items():
    register(_op)(unary_on_device(_implementation))
register("IsInf")(is_inf)
