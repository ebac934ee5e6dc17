"""Changes of element type."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context, TraceInstead
from pfvm.runtime.xla.open_dims import is_open
from pfvm.runtime.xla.registry import register

_NARROW = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
_FLOAT8 = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def cast(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _convert(ctx, x, _element_type(ctx, ctx.attr("to")))


def cast_like(ctx: Context, node: ir.Node, x: Any, like: Any) -> Any:
    return _convert(ctx, x, np.dtype(like.dtype))


def bit_cast(ctx: Context, node: ir.Node, x: Any) -> Any:
    to = _element_type(ctx, ctx.attr("to"))
    x = x.astype(np.uint8) if x.dtype == np.bool_ else x
    return x != 0 if to == np.bool_ else lax.bitcast_convert_type(jnp.asarray(x), to)


def _element_type(ctx: Context, to: int | str) -> np.dtype:
    kind = ir.DataType[to.upper()] if isinstance(to, str) else ir.DataType(to)
    if kind == ir.DataType.STRING:
        raise ctx.unsupported("a cast to strings")
    return np.dtype(kind.numpy())


def _convert(ctx: Context, x: Any, to: np.dtype) -> Any:
    if x.dtype == to:
        return x
    if ctx.on_host:
        if is_open(x) and to == np.int64:
            return x
        if is_open(x) or to.name in _NARROW or to.name.startswith("float8"):
            raise TraceInstead
        return x.astype(to)
    if to == np.bool_:
        return x != np.zeros((), x.dtype)
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    if to.name in _FLOAT8 and is_float:
        return _to_float8(ctx, x, to)
    if to.name == "float8_e8m0fnu":
        return _to_float8_e8m0(ctx, x)
    if to.name in _NARROW and x.dtype.name not in _NARROW:
        return _to_narrow(x, to)
    if to.kind in "iu" and is_float:
        return _float_to_integer(x, to)
    return jnp.asarray(x).astype(to)


def _float_to_integer(x: Any, to: np.dtype) -> Any:
    """Truncates. Out of range the ONNX standard leaves the result open; narrow types wrap as on ONNX Runtime (x86)."""
    x = jnp.asarray(x)
    if to.itemsize < 4 and to.name in ("int8", "uint8", "int16", "uint16"):
        return x.astype(jnp.int32).astype(to)
    if to == np.uint32:
        return x.astype(jnp.int64).astype(to)
    return x.astype(to)


def _to_narrow(x: Any, to: np.dtype) -> Any:
    """Keeps the low bits, as the standard says, and extends their sign."""
    bits = _NARROW[to.name]
    low = jnp.asarray(x).astype(jnp.int32) & ((1 << bits) - 1)
    if to.name.startswith("int"):
        low = jnp.where(low >= 1 << (bits - 1), low - (1 << bits), low)
    return low.astype(to)


def _to_float8_e8m0(ctx: Context, x: Any) -> Any:
    """Only an exponent: the fraction is rounded away by `round_mode`; the sign is dropped."""
    bits = lax.bitcast_convert_type(jnp.asarray(x).astype(jnp.float32), jnp.uint32)
    exponent = (bits >> 23) & 0xFF
    mode = ctx.attr("round_mode", None) or "up"
    fraction = bits & 0x7FFFFF
    if mode == "up":
        rounded = exponent + (fraction > 0)
    elif mode == "nearest":
        rounded = exponent + ((fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0)))
    else:
        rounded = exponent
    if ctx.attr("saturate", 1):
        rounded = jnp.minimum(rounded, 0xFE)
    stored = jnp.where(exponent == 0xFF, 0xFF, rounded).astype(jnp.uint8)
    return lax.bitcast_convert_type(stored, jnp.float8_e8m0fnu)


def _to_float8(ctx: Context, x: Any, to: np.dtype) -> Any:
    """saturate=1 (default): what is too large becomes the largest finite number; 0: infinity, or NaN without one."""
    limits = ml_dtypes.finfo(to)
    x = jnp.asarray(x)
    if ctx.attr("saturate", 1):
        top = np.asarray(limits.max, np.float64).astype(x.dtype)
        clipped = jnp.clip(x, -top, top)
        # fnuz types have no infinity and keep it NaN; the others saturate it too.
        return jnp.where(jnp.isnan(x), x, clipped).astype(to)
    return x.astype(to)


register("Cast", place="host")(cast)
register("CastLike", place="host")(cast_like)
register("BitCast")(bit_cast)
