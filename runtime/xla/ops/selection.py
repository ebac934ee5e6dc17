"""Ordering and selecting elements. Those with a data-dependent output shape need their operand at compile time."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context, MisfitError
from pfvm.runtime.xla.registry import register


def top_k(ctx: Context, node: ir.Node, x: Any, k: Any = None) -> Any:
    """Equal elements keep their order, so that the lower index comes first."""
    count = ctx.attr("k") if k is None else ctx.ints(k)[0]
    axis = ctx.attr("axis")
    if not 0 <= count <= x.shape[axis]:
        raise MisfitError(f"{ctx.where}: k is {count}, expected 0 to {x.shape[axis]}, the size of axis {axis}")
    largest = ctx.attr("largest", 1)
    order = jnp.argsort(x, axis=axis, stable=True, descending=bool(largest))
    index = jnp.take(order, jnp.arange(count), axis=axis)
    return jnp.take_along_axis(jnp.asarray(x), index, axis=axis), index.astype(jnp.int64)


def non_zero(ctx: Context, node: ir.Node, x: Any) -> Any:
    return np.stack(np.nonzero(np.atleast_1d(ctx.concrete(x)))).astype(np.int64)


def compress(ctx: Context, node: ir.Node, x: Any, condition: Any) -> Any:
    axis = ctx.attr("axis", None)
    kept = np.flatnonzero(ctx.concrete(condition))
    return ctx.xp.take(x.reshape(-1) if axis is None else x, kept, axis=axis or 0)


def unique(ctx: Context, node: ir.Node, x: Any) -> Any:
    axis = ctx.attr("axis", None)
    values, first, inverse, counts = np.unique(
        ctx.concrete(x), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not ctx.attr("sorted"):
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return values, first.astype(np.int64), inverse.reshape(-1).astype(np.int64), counts.astype(np.int64)


register("TopK")(top_k)
register("NonZero", place="host")(non_zero)
register("Compress", place="host")(compress)
register("Unique", place="host")(unique)
