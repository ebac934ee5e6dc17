"""Reductions over axes, running sums, and the positions of extremes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def _axes(ctx: Context, x: Any, axes: Any) -> tuple[int, ...] | None:
    """Axes to reduce; None where the node asks for none (noop_with_empty_axes). Attribute or input, by opset."""
    given = ctx.int_param("axes", axes)
    if given:
        return tuple(dict.fromkeys(a + x.ndim if a < 0 else a for a in given))
    return None if ctx.attr("noop_with_empty_axes", 0) else tuple(range(x.ndim))


def _reduction(name: str, before: Any = None, after: Any = None) -> Any:
    """A rule from an xp function; `before` and `after` are applied to the operand and the result (elementwise)."""

    def rule(ctx: Context, node: ir.Node, x: Any, axes: Any = None) -> Any:
        over = _axes(ctx, x, axes)
        keep = bool(ctx.attr("keepdims"))
        y = x if before is None else before(ctx.xp, x)
        if over is not None:
            y = _reduce(ctx, name, y, over, keep)
        return y if after is None else after(ctx.xp, y)

    return rule


def _reduce(ctx: Context, name: str, x: Any, over: tuple[int, ...], keep: bool) -> Any:
    function = getattr(ctx.xp, name)
    if name in ("sum", "prod"):
        return function(x, axis=over, keepdims=keep, dtype=x.dtype)
    if name == "mean" and x.dtype.kind in "iu":
        total = ctx.xp.sum(x, axis=over, keepdims=keep, dtype=x.dtype)
        count = np.asarray(math.prod(x.shape[a] for a in over), x.dtype)
        return lax.div(jnp.asarray(total), jnp.broadcast_to(count, total.shape))
    if name in ("max", "min") and any(x.shape[a] == 0 for a in over):
        return function(x, axis=over, keepdims=keep, initial=_neutral(name, x.dtype))
    return function(x, axis=over, keepdims=keep)


def _neutral(name: str, dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf if name == "max" else np.inf
    if dtype == np.bool_:
        return name == "min"
    limits = np.iinfo(dtype)
    return limits.min if name == "max" else limits.max


def reduce_log_sum_exp(ctx: Context, node: ir.Node, x: Any, axes: Any = None) -> Any:
    over = _axes(ctx, x, axes)
    if over is None:
        return x
    keep = bool(ctx.attr("keepdims"))
    top = jnp.max(x, axis=over, keepdims=True, initial=-np.inf)
    top = jnp.where(jnp.isfinite(top), top, np.asarray(0, x.dtype))
    total = jnp.log(jnp.sum(jnp.exp(x - top), axis=over, keepdims=True)) + top
    return total if keep else jnp.squeeze(total, over)


def _arg(name: str) -> Any:
    def rule(ctx: Context, node: ir.Node, x: Any) -> Any:
        axis = ctx.attr("axis")
        axis = axis + x.ndim if axis < 0 else axis
        find = getattr(jnp, name)
        if ctx.attr("select_last_index", 0):
            index = x.shape[axis] - 1 - find(jnp.flip(x, axis), axis=axis)
        else:
            index = find(x, axis=axis)
        index = index.astype(jnp.int64)
        return jnp.expand_dims(index, axis) if ctx.attr("keepdims") else index

    return rule


def _cumulative(function: Any, neutral: int) -> Any:
    def rule(ctx: Context, node: ir.Node, x: Any, axis: Any) -> Any:
        along = ctx.ints(axis)[0]
        x = jnp.flip(x, along) if ctx.attr("reverse") else x
        y = function(x, axis=along, dtype=x.dtype)
        if ctx.attr("exclusive") and x.shape[along]:
            kept = lax.slice_in_dim(y, 0, x.shape[along] - 1, axis=along)
            y = jnp.concatenate([jnp.full_like(lax.slice_in_dim(x, 0, 1, axis=along), neutral), kept], along)
        return jnp.flip(y, along) if ctx.attr("reverse") else y

    return rule


_ABS = lambda xp, x: xp.abs(x)  # noqa: E731
_SQUARE = lambda xp, x: x * x  # noqa: E731

register("ReduceSum", place="host")(_reduction("sum"))
register("ReduceProd", place="host")(_reduction("prod"))
register("ReduceMax", place="host")(_reduction("max"))
register("ReduceMin", place="host")(_reduction("min"))
register("ReduceMean")(_reduction("mean"))
register("ReduceL1")(_reduction("sum", before=_ABS))
register("ReduceL2")(_reduction("sum", before=_SQUARE, after=lambda xp, x: xp.sqrt(x).astype(x.dtype)))
register("ReduceSumSquare")(_reduction("sum", before=_SQUARE))
register("ReduceLogSum")(_reduction("sum", after=lambda xp, x: xp.log(x).astype(x.dtype)))
register("ReduceLogSumExp")(reduce_log_sum_exp)
register("ArgMax")(_arg("argmax"))
register("ArgMin")(_arg("argmin"))
register("CumSum")(_cumulative(jnp.cumsum, 0))
register("CumProd")(_cumulative(jnp.cumprod, 1))
