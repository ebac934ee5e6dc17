"""Changes of element type."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register

_FLOAT8 = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def cast(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _convert(ctx, x, _element_type(ctx, ctx.attr("to")))


def cast_like(ctx: Context, node: ir.Node, x: Any, like: Any) -> Any:
    return _convert(ctx, x, np.dtype(like.dtype))


def bit_cast(ctx: Context, node: ir.Node, x: Any) -> Any:
    return lax.bitcast_convert_type(jnp.asarray(x), _element_type(ctx, ctx.attr("to")))


def _element_type(ctx: Context, to: int | str) -> np.dtype:
    kind = ir.DataType[to.upper()] if isinstance(to, str) else ir.DataType(to)
    if kind == ir.DataType.STRING:
        raise ctx.unsupported("a cast to strings")
    return np.dtype(kind.numpy())


def _convert(ctx: Context, x: Any, to: np.dtype) -> Any:
    if x.dtype == to:
        return x
    if ctx.on_host:
        return x.astype(to)
    if to == np.bool_:
        return x != np.zeros((), x.dtype)
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    if to.name in _FLOAT8 and is_float:
        return _to_float8(ctx, x, to)
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
