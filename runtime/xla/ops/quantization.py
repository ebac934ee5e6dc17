"""Quantized types: conversion, and operators on them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.conv import integer_convolution
from pfvm.runtime.xla.registry import register


def spread(ctx: Context, parameter: Any, shape: tuple[int, ...]) -> Any:
    """A scale or zero point, per tensor, per axis or blocked, in a shape that broadcasts against `shape`."""
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis = ctx.attr("axis", 1)
    axis = 1 if axis is None else axis
    axis = axis + len(shape) if axis < 0 else axis
    block = ctx.attr("block_size", 0) or 0
    if block:
        repeated = jnp.repeat(parameter, block, axis=axis)
        return repeated[tuple(slice(0, n) for n in shape)]
    return parameter.reshape(tuple(-1 if i == axis else 1 for i in range(len(shape))))


def quantize_linear(ctx: Context, node: ir.Node, x: Any, scale: Any, zero: Any = None) -> Any:
    to = _quantized_type(ctx, zero)
    wide = jnp.promote_types(x.dtype, scale.dtype) if ctx.opset >= 23 else x.dtype
    precision = ctx.attr("precision", 0) or 0
    if precision:
        wide = ir.DataType(precision).numpy()
    x = x.astype(jnp.float32) if x.dtype == jnp.int32 else x
    ratio = x.astype(jnp.float32) / spread(ctx, scale, x.shape).astype(jnp.float32)
    if precision and wide != jnp.float32:
        ratio = (x.astype(wide) / spread(ctx, scale, x.shape).astype(wide)).astype(jnp.float32)
    if jnp.issubdtype(to, jnp.floating):
        return _saturate_float(ctx, ratio, to)
    shift = 0 if zero is None else spread(ctx, zero, x.shape).astype(jnp.float32)
    return saturate(jnp.round(ratio) + shift, to)


def _quantized_type(ctx: Context, zero: Any) -> np.dtype:
    if zero is not None:
        return np.dtype(zero.dtype)
    kind = ctx.attr("output_dtype", 0) or ir.DataType.UINT8.value
    return np.dtype(ir.DataType(kind).numpy())


def saturate(x: Any, to: Any) -> Any:
    """Whole floats as integers of type `to`. NaN, which a scale of 0 makes of 0, is the lowest, as in ONNX Runtime."""
    low, high = float(jnp.iinfo(to).min), float(jnp.iinfo(to).max)
    return jnp.where(x > low, jnp.minimum(x, high), low).astype(jnp.int32).astype(to)


def _saturate_float(ctx: Context, x: Any, to: Any) -> Any:
    if not ctx.attr("saturate", 1) or "float8" not in np.dtype(to).name:
        return x.astype(to)
    top = float(jnp.finfo(to).max)
    return jnp.where(jnp.isnan(x), x, jnp.clip(x, -top, top)).astype(to)


def dequantize_linear(ctx: Context, node: ir.Node, x: Any, scale: Any, zero: Any = None) -> Any:
    """Computed in the scale's type (or float32 for int32 differences), result in `output_dtype` or the scale's."""
    to = ctx.attr("output_dtype", 0) or 0
    result = scale.dtype if not to else ir.DataType(to).numpy()
    if jnp.issubdtype(x.dtype, jnp.floating):
        difference = x.astype(jnp.float32)
    else:
        difference = x.astype(jnp.int32)
        if zero is not None:
            difference = difference - spread(ctx, zero, x.shape).astype(jnp.int32)
    return (difference.astype(jnp.float32) * spread(ctx, scale, x.shape).astype(jnp.float32)).astype(result)


def dynamic_quantize_linear(ctx: Context, node: ir.Node, x: Any) -> Any:
    return dynamic_quantization(x)


def dynamic_quantization(x: Any) -> tuple[Any, Any, Any]:
    """(uint8 values, scale, zero point) over the operand's range extended to hold zero."""
    low, high = jnp.minimum(jnp.min(x, initial=0), 0), jnp.maximum(jnp.max(x, initial=0), 0)
    scale = (high - low) / np.float32(255)
    scale = jnp.where(scale == 0, np.float32(1), scale)
    zero = jnp.round(jnp.clip(-low / scale, 0, 255))
    return saturate(jnp.round(x / scale) + zero, np.uint8), scale, zero.astype(jnp.uint8)


def q_linear_matmul(
    ctx: Context,
    node: ir.Node,
    a: Any,
    a_scale: Any,
    a_zero: Any,
    b: Any,
    b_scale: Any,
    b_zero: Any,
    y_scale: Any,
    y_zero: Any,
) -> Any:
    """Row-wise parameters of `a` and column-wise ones of `b` allowed."""

    def rows(v: Any) -> Any:
        return v[..., None] if v.ndim >= 1 and v.size > 1 and v.ndim < a.ndim else v

    def scalar(v: Any) -> Any:
        return v.reshape(()) if v.size == 1 else v

    a_scale, a_zero = rows(scalar(a_scale)), rows(scalar(a_zero))
    total = jnp.matmul(
        a.astype(jnp.int32) - a_zero.astype(jnp.int32), b.astype(jnp.int32) - scalar(b_zero).astype(jnp.int32)
    )
    factor = a_scale.astype(jnp.float32) * scalar(b_scale).astype(jnp.float32) / scalar(y_scale).astype(jnp.float32)
    return saturate(jnp.round(total.astype(jnp.float32) * factor) + scalar(y_zero).astype(jnp.float32), y_zero.dtype)


def q_linear_conv(
    ctx: Context,
    node: ir.Node,
    x: Any,
    x_scale: Any,
    x_zero: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    y_scale: Any,
    y_zero: Any,
    bias: Any = None,
) -> Any:
    total = integer_convolution(ctx, x, w, x_zero, w_zero)
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    if bias is not None:
        total = total + bias.reshape(per_channel)
    factor = x_scale.reshape(()) * w_scale.reshape(per_channel) / y_scale.reshape(())
    return saturate(
        jnp.round(total.astype(jnp.float32) * factor) + y_zero.reshape(()).astype(jnp.float32), y_zero.dtype
    )


register("QuantizeLinear")(quantize_linear)
register("DequantizeLinear")(dequantize_linear)
register("DynamicQuantizeLinear")(dynamic_quantize_linear)
register("QLinearMatMul")(q_linear_matmul)
register("QLinearConv")(q_linear_conv)
