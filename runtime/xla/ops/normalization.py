"""Normalizations."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def _per_channel(v: Any, rank: int) -> Any:
    """One number per channel, on axis 1. A vector operand is one channel."""
    return v.reshape((1, -1) + (1,) * (rank - 2)) if rank > 1 else v


def batch_normalization(ctx: Context, node: ir.Node, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Training form: normalizes by the batch's statistics and moves the stored ones by `momentum` towards them.

    `spatial=0` (before opset 9): statistics for each element of a sample instead of each channel.
    """
    each = ctx.opset < 9 and not ctx.attr("spatial", 1)
    shape = (1, *x.shape[1:]) if each else (1, -1) + (1,) * (x.ndim - 2) if x.ndim > 1 else scale.shape
    training = _trains(ctx)
    epsilon = np.asarray(ctx.attr("epsilon"), var.dtype)
    if not training:
        return _affine(x, mean, var + epsilon, scale, bias, shape)
    batch_mean, batch_var = _batch_statistics(x, (0,) if each else (0, *range(2, x.ndim)))
    batch_mean, batch_var = (v.astype(mean.dtype).reshape(mean.shape) for v in (batch_mean, batch_var))
    y = _affine(x, batch_mean, batch_var + epsilon, scale, bias, shape)
    momentum = np.asarray(ctx.attr("momentum"), mean.dtype)
    moved = [
        old * momentum + new * (np.asarray(1, mean.dtype) - momentum)
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return y, *moved, *(() if ctx.opset >= 14 else (batch_mean, batch_var))


def _trains(ctx: Context) -> bool:
    """`training_mode` from opset 14 on, before that the outputs that the node has; before 7 `is_test` forbids it."""
    if ctx.opset >= 14:
        return bool(ctx.attr("training_mode", 0))
    more = any(ctx.wants(i) for i in range(1, len(ctx.node.outputs)))
    if ctx.opset < 7 and ctx.attr("is_test", 0):
        return False
    if ctx.opset < 7 and not more:
        raise ctx.unsupported("is_test=0 without the outputs of training")
    return more


def _batch_statistics(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Mean and variance of the population, in float32 at least."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.mean(wide, axes), jnp.var(wide, axes)


def _affine(x: Any, mean: Any, var: Any, scale: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    factor = scale / jnp.sqrt(var)
    return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)).astype(x.dtype)


def instance_normalization(ctx: Context, node: ir.Node, x: Any, scale: Any, bias: Any) -> Any:
    y = _standardize(x, tuple(range(2, x.ndim)), ctx.attr("epsilon"))[0]
    return y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


# XLA's CPU backend adds up one number after the other. Above this many, axis by axis loses fewer digits.
_LONG_SUM = 16384


def _mean(x: Any, axes: tuple[int, ...]) -> Any:
    if math.prod(x.shape[a] for a in axes) <= _LONG_SUM:
        return jnp.mean(x, axes, keepdims=True)
    return functools.reduce(lambda v, axis: jnp.mean(v, axis, keepdims=True), reversed(axes), x)


def _standardize(x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """((x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon)), with the variance of the population."""
    mean = _mean(x, axes)
    centred = x - mean
    inverse = lax.rsqrt(_mean(centred * centred, axes) + np.asarray(epsilon, x.dtype))
    return centred * inverse, mean, inverse


def layer_normalization(ctx: Context, node: ir.Node, x: Any, scale: Any, bias: Any = None) -> Any:
    """Statistics in `stash_type` (float32 by default), results in the operand's type."""
    axis = ctx.attr("axis", -1)
    axis = axis + x.ndim if axis < 0 else axis
    stash = ir.DataType(ctx.attr("stash_type", 1)).numpy()
    return _layer_normalized(x, scale, bias, axis, ctx.attr("epsilon", 1e-5), stash)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))  # traced and lowered once for each shape
def _layer_normalized(x: Any, scale: Any, bias: Any, axis: int, epsilon: float, stash: Any) -> tuple[Any, Any, Any]:
    wide = jnp.promote_types(x.dtype, stash)
    y, mean, inverse = _standardize(x.astype(wide), tuple(range(axis, x.ndim)), epsilon)
    y = y.astype(x.dtype) * scale
    return y if bias is None else y + bias, mean.astype(stash), inverse.astype(stash)


def rms_normalization(ctx: Context, node: ir.Node, x: Any, scale: Any) -> Any:
    axis = ctx.attr("axis", -1)
    axis = axis + x.ndim if axis < 0 else axis
    wide = x.astype(jnp.promote_types(x.dtype, ir.DataType(ctx.attr("stash_type", 1)).numpy()))
    square = jnp.mean(wide * wide, tuple(range(axis, x.ndim)), keepdims=True)
    y = wide * lax.rsqrt(square + np.asarray(ctx.attr("epsilon", 1e-5), wide.dtype))
    return y.astype(x.dtype) * scale


def group_normalization(ctx: Context, node: ir.Node, x: Any, scale: Any, bias: Any) -> Any:
    """Opset 18: one scale and bias per group; from 21 on: per channel, with statistics in `stash_type`."""
    groups = ctx.attr("num_groups")
    stash = ir.DataType(ctx.attr("stash_type", None) or 1).numpy() if ctx.opset >= 21 else x.dtype
    wide = x.reshape(x.shape[0], groups, -1).astype(jnp.promote_types(x.dtype, stash))
    y = _standardize(wide, (2,), ctx.attr("epsilon"))[0].astype(x.dtype)
    if ctx.opset < 21:
        return (y * scale[None, :, None] + bias[None, :, None]).reshape(x.shape)
    return y.reshape(x.shape) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


def mean_variance_normalization(ctx: Context, node: ir.Node, x: Any) -> Any:
    """(x - mean) / (sqrt(E[x²] - mean²) + 1e-9), as the standard's function body has it.

    Of the default axes (0, 2, 3), those that the operand lacks are skipped.
    """
    axes = tuple(a for a in ctx.attr("axes") or (0, 2, 3) if a < x.ndim)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(wide, axes, keepdims=True)
    deviation = jnp.sqrt(jnp.mean(wide * wide, axes, keepdims=True) - mean * mean)
    return ((wide - mean) / (deviation + np.asarray(1e-9, wide.dtype))).astype(x.dtype)


def local_response_normalization(ctx: Context, node: ir.Node, x: Any) -> Any:
    size = ctx.attr("size")
    left = (size - 1) // 2
    square = lax.reduce_window(
        x * x,
        np.zeros((), x.dtype),
        lax.add,
        (1, size) + (1,) * (x.ndim - 2),
        (1,) * x.ndim,
        ((0, 0), (left, size - 1 - left)) + ((0, 0),) * (x.ndim - 2),
    )
    alpha, beta, bias = (np.asarray(ctx.attr(name), x.dtype) for name in ("alpha", "beta", "bias"))
    return x / (bias + alpha / np.asarray(size, x.dtype) * square) ** beta


def lp_normalization(ctx: Context, node: ir.Node, x: Any) -> Any:
    """A zero vector stays zero."""
    axis = ctx.attr("axis")
    if ctx.attr("p") == 1:
        norm = jnp.sum(jnp.abs(x), axis, keepdims=True)
    else:
        norm = jnp.sqrt(jnp.sum(x * x, axis, keepdims=True))
    return jnp.where(norm == 0, np.zeros((), x.dtype), x / norm)


register("BatchNormalization")(batch_normalization)
register("InstanceNormalization")(instance_normalization)
register("LayerNormalization")(layer_normalization)
register("RMSNormalization", since=23)(rms_normalization)
register("GroupNormalization", since=18)(group_normalization)
register("MeanVarianceNormalization", since=9)(mean_variance_normalization)
register("LRN")(local_response_normalization)
register("LpNormalization")(lp_normalization)
