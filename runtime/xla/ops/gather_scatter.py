"""Reading and writing by index. Negative indices count from the end.

An XLA program cannot raise: an index out of range reads the nearest element and writes nothing, and the call reports it
(see `range_checks`).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import onnx_ir as ir
from pfvm.errors import InvalidModelError
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.layouts import accepting, adapts, plain
from pfvm.runtime.xla.ops.pool_gradient import max_pool_gradient
from pfvm.runtime.xla.registry import register

_UPDATES = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
_OF_BOOLS = {"add": "max", "mul": "min"}  # any, all


def gather(ctx: Context, node: ir.Node, x: Any, indices: Any) -> Any:
    axis = ctx.attr("axis")
    if ctx.on_host:
        return ctx.xp.take(x, indices, axis=axis)
    ctx.expect_indices(indices, x.shape, axis)
    return jnp.take(x, _wrapped(indices, x.shape[axis]), axis=axis, mode="clip")


def _wrapped(indices: Any, size: int) -> Any:
    return jnp.where(indices < 0, indices + size, indices)


def gather_elements(ctx: Context, node: ir.Node, x: Any, indices: Any) -> Any:
    axis = ctx.attr("axis")
    axis = axis + x.ndim if axis < 0 else axis
    ctx.expect_indices(indices, x.shape, axis)
    # Other axes of the indices may be shorter than the operand's.
    x = x[tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(indices.shape))]
    return jnp.take_along_axis(x, _wrapped(indices, x.shape[axis]), axis=axis)


def gather_nd(ctx: Context, node: ir.Node, x: Any, indices: Any) -> Any:
    batch = ctx.attr("batch_dims", 0) or 0
    lead = [
        jnp.arange(n).reshape((1,) * i + (-1,) + (1,) * (indices.ndim - 2 - i)) for i, n in enumerate(x.shape[:batch])
    ]
    parts = _columns(ctx, indices, x.shape, batch)
    return jnp.asarray(x)[(*lead, *parts)]


def scatter_elements(ctx: Context, node: ir.Node, x: Any, indices: Any, updates: Any) -> Any:
    gradient = max_pool_gradient(ctx, node, x, updates)
    if gradient is not None:
        return gradient
    x, indices, updates = map(plain, (x, indices, updates))
    axis = ctx.attr("axis")
    axis = axis + x.ndim if axis < 0 else axis
    ctx.expect_indices(indices, x.shape, axis)
    grid = list(jnp.indices(indices.shape, sparse=True))
    grid[axis] = _wrapped(indices, x.shape[axis])
    return _update(ctx, x, tuple(grid), updates)


def scatter_nd(ctx: Context, node: ir.Node, x: Any, indices: Any, updates: Any) -> Any:
    return _update(ctx, x, tuple(_columns(ctx, indices, x.shape, 0)), updates)


def _columns(ctx: Context, indices: Any, shape: tuple[int, ...], first: int) -> list[Any]:
    """The columns of n-dimensional indices, one for each axis from `first` on."""
    known = ctx.known(indices)
    parts = []
    for i in range(indices.shape[-1]):
        ctx.expect_indices((indices if known is None else known)[..., i], shape, first + i)
        parts.append(_wrapped(indices[..., i], shape[first + i]))
    return parts


def _update(ctx: Context, x: Any, index: tuple[Any, ...], updates: Any) -> Any:
    """Duplicate indices without a reduction: the standard leaves open which one wins."""
    target = jnp.asarray(x).at[index]
    reduction = ctx.attr("reduction", "none") or "none"
    if reduction not in _UPDATES:
        raise InvalidModelError(f"{ctx.where}: reduction={reduction!r}: expected one of {', '.join(_UPDATES)}")
    if x.dtype == bool:
        reduction = _OF_BOOLS.get(reduction, reduction)
    return getattr(target, _UPDATES[reduction])(updates)


def tensor_scatter(ctx: Context, node: ir.Node, past: Any, update: Any, write: Any = None) -> Any:
    """Writes `update` into a cache at each sequence's own position along `axis`; "circular" wraps around."""
    axis = ctx.attr("axis")
    axis = axis + past.ndim if axis < 0 else axis
    start = jnp.zeros(past.shape[0], jnp.int64) if write is None else write
    steps = start[:, None] + jnp.arange(update.shape[axis])[None, :]
    if ctx.attr("mode", "linear") == "circular":
        steps = steps % past.shape[axis]
    else:
        ctx.expect_indices(steps, past.shape, axis, lowest=0)
    grid = list(jnp.indices(update.shape, sparse=True))
    shape = [1] * past.ndim
    shape[0], shape[axis] = past.shape[0], update.shape[axis]
    grid[axis] = steps.reshape(shape)
    return jnp.asarray(past).at[tuple(grid)].set(update)


register("Gather", place="host")(gather)
register("GatherElements")(gather_elements)
register("GatherND")(gather_nd)
register("Scatter", "ScatterElements")(scatter_elements)
register("ScatterND")(scatter_nd)
register("TensorScatter", since=24)(tensor_scatter)
adapts("ScatterElements")(accepting)
