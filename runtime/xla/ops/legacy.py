"""Operators that old exporters wrote and the standard has dropped, as ONNX Runtime still understands them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.slicing import slice_
from pfvm.runtime.xla.registry import register


def _number(ctx: Context, name: str, default: float, x: Any) -> np.ndarray:
    return np.asarray(ctx.attr(name, default), x.dtype)


def affine(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _number(ctx, "alpha", 1.0, x) * x + _number(ctx, "beta", 0.0, x)


def scaled_tanh(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _number(ctx, "alpha", 1.0, x) * jnp.tanh(_number(ctx, "beta", 1.0, x) * x)


def parametric_softplus(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _number(ctx, "alpha", 1.0, x) * jnp.logaddexp(_number(ctx, "beta", 1.0, x) * x, jnp.zeros((), x.dtype))


def image_scaler(ctx: Context, node: ir.Node, x: Any) -> Any:
    """x: N, C, H, W; one bias per channel, added after scaling."""
    bias = np.asarray(ctx.attr("bias"), x.dtype).reshape(1, -1, 1, 1)
    return x * _number(ctx, "scale", 1.0, x) + bias


def crop(ctx: Context, node: ir.Node, x: Any) -> Any:
    """border: left, top, right, bottom; scale (height, width), where given, replaces right and bottom."""
    left, top, right, bottom = ctx.attr("border")
    scale = ctx.attr("scale", None)
    height, width = scale or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    return x[:, :, top : top + height, left : left + width]


def given_tensor_fill(ctx: Context, node: ir.Node, x: Any = None) -> Any:
    values = np.asarray(ctx.attr("values"), np.float32)
    return values.reshape(_filled_shape(ctx, x))


def constant_fill(ctx: Context, node: ir.Node, x: Any = None) -> Any:
    dtype = ir.DataType(ctx.attr("dtype", 1)).numpy()
    return np.full(_filled_shape(ctx, x), ctx.attr("value", 0.0), dtype)


def _filled_shape(ctx: Context, x: Any) -> tuple[int, ...]:
    """The attribute `shape`, or the operand (its shape or, with input_as_shape, its value) and `extra_shape`."""
    if x is None:
        return tuple(ctx.attr("shape"))
    lead = ctx.ints(x) if ctx.attr("input_as_shape", 0) else x.shape
    return (*lead, *(ctx.attr("extra_shape", None) or ()))


def mean_variance_normalization(ctx: Context, node: ir.Node, x: Any) -> Any:
    """Before opset 9: over batch and space, and with across_channels over channels too; variance where asked for."""
    axes = tuple(range(x.ndim)) if ctx.attr("across_channels", 0) else (0, *range(2, x.ndim))
    centred = x - jnp.mean(x, axes, keepdims=True)
    if not ctx.attr("normalize_variance", 1):
        return centred
    return centred / jnp.sqrt(jnp.mean(centred * centred, axes, keepdims=True))


register("Affine")(affine)
register("ScaledTanh")(scaled_tanh)
register("ParametricSoftplus")(parametric_softplus)
register("ImageScaler")(image_scaler)
register("Crop")(crop)
register("GivenTensorFill", place="host")(given_tensor_fill)
register("ConstantFill", place="host")(constant_fill)
register("DynamicSlice", place="host")(slice_)
register("MeanVarianceNormalization")(mean_variance_normalization)
