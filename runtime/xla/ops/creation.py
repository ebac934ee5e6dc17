"""Tensors made from nothing but parameters."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context, TraceInstead
from pfvm.runtime.xla.open_dims import is_open, traced
from pfvm.runtime.xla.registry import register


def constant(ctx: Context, node: ir.Node) -> Any:
    """Only what is not a weight already comes here: values that refer to a function's attributes."""
    for name in ("value", "value_int", "value_ints", "value_float", "value_floats"):
        value = ctx.attr(name, None)
        if value is not None:
            return np.asarray(value, None if name == "value" else np.int64 if "int" in name else np.float32)
    raise ctx.unsupported("a string or sparse constant")


def constant_of_shape(ctx: Context, node: ir.Node, shape: Any) -> Any:
    dims = tuple(ctx.ints(shape))
    ctx.check_size(dims)
    value = ctx.attr("value", None)
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    return ctx.xp.full(dims, fill, fill.dtype)


def range_(ctx: Context, node: ir.Node, start: Any, limit: Any, delta: Any) -> Any:
    dtype = start.dtype
    first, last, step = (ctx.concrete(v).reshape(())[()] for v in (start, limit, delta))
    if any(map(is_open, (start, limit, delta))):
        return _open_range(ctx, first, last, step)
    count = max(0, math.ceil((float(last) - float(first)) / float(step)))
    ctx.check_size([count])
    steps = ctx.xp.arange(count).astype(dtype)
    return np.asarray(first, dtype) + steps * np.asarray(step, dtype)


def _open_range(ctx: Context, first: Any, last: Any, step: Any) -> Any:
    if ctx.on_host:
        raise TraceInstead
    if not isinstance(step, (int, np.integer)) or step != 1:
        raise ctx.unsupported(f"a step of {step} over an open dimension")
    return traced(np.asarray(first, object)) + jnp.arange(last - first, dtype=jnp.int64)


def eye_like(ctx: Context, node: ir.Node, x: Any) -> Any:
    kind = ctx.attr("dtype", None)
    dtype = x.dtype if kind is None else ir.DataType(kind).numpy()
    return jnp.eye(x.shape[0], x.shape[1], k=ctx.attr("k"), dtype=dtype)


def one_hot(ctx: Context, node: ir.Node, indices: Any, depth: Any, values: Any) -> Any:
    """Negative indices count from the end; indices out of range give a row of the off value."""
    count = ctx.ints(depth)[0]
    axis = ctx.attr("axis")
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    wrapped = jnp.where(indices < 0, indices + count, indices)
    classes = jnp.arange(count).reshape((-1,) + (1,) * (indices.ndim - axis))
    return jnp.where(jnp.expand_dims(wrapped, axis) == classes, values[1], values[0])


def trilu(ctx: Context, node: ir.Node, x: Any, k: Any = None) -> Any:
    offset = 0 if k is None else ctx.ints(k)[0]
    return jnp.triu(x, offset) if ctx.attr("upper") else jnp.tril(x, offset)


def _window(coefficients: tuple[float, ...]) -> Any:
    def rule(ctx: Context, node: ir.Node, size: Any) -> Any:
        count = ctx.ints(size)[0]
        last = count if ctx.attr("periodic") else count - 1
        angle = 2 * math.pi * np.arange(count) / max(last, 1)
        window = sum(c * np.cos(i * angle) for i, c in enumerate(coefficients))
        return np.asarray(window, ir.DataType(ctx.attr("output_datatype")).numpy())

    return rule


register("Constant", place="host")(constant)
register("ConstantOfShape", place="host")(constant_of_shape)
register("Range", place="host")(range_)
register("EyeLike")(eye_like)
register("OneHot")(one_hot)
register("Trilu")(trilu)
register("HannWindow", place="host")(_window((0.5, -0.5)))
register("HammingWindow", place="host")(_window((25 / 46, -21 / 46)))
register("BlackmanWindow", place="host")(_window((0.42, -0.5, 0.08)))
