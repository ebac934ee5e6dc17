"""com.microsoft's operators on 8-bit tensors: real numbers inside, rounded to the result's scale and zero point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.contrib_attention import attend
from pfvm.runtime.xla.ops.contrib_fused import embed_layer_normalization
from pfvm.runtime.xla.ops.matmul import per_column
from pfvm.runtime.xla.ops.pool import average_pool
from pfvm.runtime.xla.ops.quantization import (
    dequantize_linear,
    dynamic_quantization,
    q_linear_conv,
    quantize_linear,
    saturate,
)
from pfvm.runtime.xla.registry import register

_DOMAIN = "com.microsoft"


def _real(x: Any, scale: Any, zero: Any) -> Any:
    """Per tensor: the numbers that `x` stands for."""
    return _difference(x, zero).astype(jnp.float32) * scale.reshape(()).astype(jnp.float32)


def _difference(x: Any, zero: Any) -> Any:
    x = x.astype(jnp.int32)
    if zero is None:
        return x
    return x - per_column(zero.astype(jnp.int32))


def _quantized(x: Any, scale: Any, zero: Any, like: Any) -> Any:
    shift = 0 if zero is None else zero.reshape(()).astype(jnp.float32)
    return saturate(jnp.round(x / scale.reshape(()).astype(jnp.float32)) + shift, like.dtype)


def _unary(function: Callable[[Context, Any], Any]) -> Any:
    def rule(
        ctx: Context, node: ir.Node, x: Any, scale: Any, zero: Any = None, y_scale: Any = None, y_zero: Any = None
    ) -> Any:
        return _quantized(function(ctx, _real(x, scale, zero)), y_scale, y_zero, x)

    return rule


def _binary(function: Callable[[Any, Any], Any]) -> Any:
    def rule(
        ctx: Context, node: ir.Node, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any,
        scale: Any, zero: Any = None,
    ) -> Any:  # fmt: skip
        return _quantized(function(_real(a, a_scale, a_zero), _real(b, b_scale, b_zero)), scale, zero, a)

    return rule


def _leaky_relu(ctx: Context, x: Any) -> Any:
    return jnp.where(x >= 0, x, np.float32(ctx.attr("alpha", 0.01)) * x)


def _softmax(ctx: Context, x: Any) -> Any:
    """opset < 13: over all axes from `axis` on."""
    axis = ctx.attr("axis", -1) % x.ndim
    if ctx.attr("opset", 13) >= 13:
        return jax.nn.softmax(x, axis=axis)
    return jax.nn.softmax(x.reshape(*x.shape[:axis], -1), axis=-1).reshape(x.shape)


def _channels_first(ctx: Context, x: Any) -> Any:
    return jnp.moveaxis(x, -1, 1) if ctx.attr("channels_last", 0) else x


def _as_given(ctx: Context, y: Any) -> Any:
    return jnp.moveaxis(y, 1, -1) if ctx.attr("channels_last", 0) else y


def _average_pool(ctx: Context, x: Any) -> Any:
    return _as_given(ctx, average_pool(ctx, ctx.node, _channels_first(ctx, x)))


def _global_average_pool(ctx: Context, x: Any) -> Any:
    spatial = tuple(range(1, x.ndim - 1)) if ctx.attr("channels_last", 0) else tuple(range(2, x.ndim))
    return jnp.mean(x, spatial, keepdims=True)


def q_linear_concat(ctx: Context, node: ir.Node, scale: Any, zero: Any, *operands: Any) -> Any:
    triples = zip(operands[0::3], operands[1::3], operands[2::3])
    parts = [_quantized(_real(x, s, z), scale, zero, x) for x, s, z in triples]
    return jnp.concatenate(parts, axis=ctx.attr("axis"))


def q_linear_where(
    ctx: Context, node: ir.Node, condition: Any, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any,
    scale: Any, zero: Any,
) -> Any:  # fmt: skip
    chosen = jnp.where(condition, _real(x, x_scale, x_zero), _real(y, y_scale, y_zero))
    return _quantized(chosen, scale, zero, x)


def microsoft_q_linear_conv(ctx: Context, node: ir.Node, x: Any, *operands: Any) -> Any:
    return _as_given(ctx, q_linear_conv(ctx, node, _channels_first(ctx, x), *operands))


def q_gemm(
    ctx: Context, node: ir.Node, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, c: Any = None,
    y_scale: Any = None, y_zero: Any = None,
) -> Any:  # fmt: skip
    """`c` is int32 in units of alpha · a_scale · b_scale. Without y_scale the result is float32."""
    a_, b_ = _difference(a, a_zero), b.astype(jnp.int32)
    a_ = a_.T if ctx.attr("transA", 0) else a_
    b_ = b_.T if ctx.attr("transB", 0) else b_
    total = jnp.matmul(a_, _difference(b_, b_zero))
    total = total if c is None else total + c
    scale = np.float32(ctx.attr("alpha", 1.0)) * a_scale.reshape(()) * per_column(b_scale)
    y = total.astype(jnp.float32) * scale
    if y_scale is None:
        return y
    return saturate(jnp.round(y / y_scale.reshape(())) + y_zero.reshape(()).astype(jnp.float32), y_zero.dtype)


def matmul_integer_to_float(
    ctx: Context, node: ir.Node, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any = None, b_zero: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    total = jnp.matmul(_difference(a, a_zero), _difference(b, b_zero)).astype(jnp.float32)
    y = total * (a_scale.reshape(()) * per_column(b_scale))
    return y if bias is None else y + bias


def dynamic_quantize_matmul(
    ctx: Context, node: ir.Node, a: Any, b: Any, b_scale: Any, b_zero: Any = None, bias: Any = None
) -> Any:
    values, scale, zero = dynamic_quantization(a)
    return matmul_integer_to_float(ctx, node, values, b, scale, b_scale, zero, b_zero, bias)


def matmul_n_bits(
    ctx: Context, node: ir.Node, a: Any, b: Any, scales: Any, zeros: Any = None, g_idx: Any = None, bias: Any = None
) -> Any:
    """b: (N, blocks, bytes), K numbers of `bits` bits in blocks along K with a scale and a zero point each."""
    if g_idx is not None:
        raise ctx.unsupported("g_idx")
    bits, size, n, k = (ctx.attr(name, 4 if name == "bits" else None) for name in ("bits", "block_size", "N", "K"))
    blocks = -(-k // size)
    scales = scales.reshape(n, blocks, 1)
    if zeros is None:
        zeros = jnp.full((n, blocks, 1), 1 << (bits - 1), scales.dtype)
    elif zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(n, -1), bits)[:, :blocks, None].astype(scales.dtype)
    weights = (_unpacked(b.reshape(n, blocks, -1), bits).astype(scales.dtype) - zeros.reshape(n, blocks, 1)) * scales
    y = jnp.matmul(a, weights.reshape(n, -1)[:, :k].T.astype(a.dtype))
    return y if bias is None else y + bias


def _unpacked(packed: Any, bits: int) -> Any:
    """Numbers of `bits` bits out of bytes, low bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def q_attention(
    ctx: Context, node: ir.Node, x: Any, w: Any, b: Any, x_scale: Any, w_scale: Any, mask: Any = None,
    x_zero: Any = None, w_zero: Any = None, past: Any = None,
) -> Any:  # fmt: skip
    if ctx.attr("do_rotary", 0):
        raise ctx.unsupported("do_rotary")
    projected = matmul_integer_to_float(ctx, node, x, w, x_scale, w_scale, x_zero, w_zero, b)
    return attend(ctx, projected, [w.shape[1] // 3] * 3, mask, past)


def q_embed_layer_normalization(
    ctx: Context, node: ir.Node, ids: Any, segments: Any, words: Any, places: Any, segment_table: Any, gamma: Any,
    beta: Any, mask: Any, *parameters: Any,
) -> Any:  # fmt: skip
    """Each table is quantized per tensor; scales come first, then zero points, in the tables' order."""
    tables = (words, places, segment_table, gamma, beta)
    words, places, segment_table, gamma, beta = (
        None if t is None else _real(t, s, z) for t, s, z in zip(tables, parameters[:5], parameters[5:])
    )
    return embed_layer_normalization(ctx, node, ids, segments, words, places, segment_table, gamma, beta, mask)


def gather_block_quantized(ctx: Context, node: ir.Node, x: Any, indices: Any, scales: Any, zeros: Any = None) -> Any:
    """Rows of a table whose numbers share a scale and a zero point in blocks along quantize_axis."""
    bits, axis = ctx.attr("bits", 4), ctx.attr("gather_axis", 0) % x.ndim
    along = ctx.attr("quantize_axis", 1) % x.ndim
    ctx.expect_indices(indices, x.shape, axis)
    if axis == along:
        raise ctx.unsupported("gather_axis and quantize_axis on one axis")
    middle = 1 << (bits - 1) if x.dtype == np.uint8 else 0
    if x.dtype == np.uint8 and bits < 8:
        x = _unpacked(x, bits)
        zeros = None if zeros is None else _unpacked(zeros, bits)[..., : scales.shape[-1]]
    along_y = along + indices.ndim - 1 if along > axis else along

    def spread(parameter: Any) -> Any:
        taken = _taken(parameter, indices, axis)
        repeated = jnp.repeat(taken, ctx.attr("block_size", 128), axis=along_y)
        return jnp.take(repeated, np.arange(x.shape[along]), axis=along_y).astype(scales.dtype)

    shift = middle if zeros is None else spread(zeros)
    return (_taken(x, indices, axis).astype(scales.dtype) - shift) * spread(scales)


def _taken(x: Any, indices: Any, axis: int) -> Any:
    return jnp.take(x, jnp.where(indices < 0, indices + x.shape[axis], indices), axis=axis)


register("QLinearAdd", domain=_DOMAIN)(_binary(jnp.add))
register("QLinearMul", domain=_DOMAIN)(_binary(jnp.multiply))
register("QLinearLeakyRelu", domain=_DOMAIN)(_unary(_leaky_relu))
register("QLinearSigmoid", domain=_DOMAIN)(_unary(lambda ctx, x: jax.nn.sigmoid(x)))
register("QLinearSoftmax", domain=_DOMAIN)(_unary(_softmax))
register("QLinearAveragePool", domain=_DOMAIN)(_unary(_average_pool))
register("QLinearGlobalAveragePool", domain=_DOMAIN)(_unary(_global_average_pool))
register("QLinearConcat", domain=_DOMAIN)(q_linear_concat)
register("QLinearWhere", domain=_DOMAIN)(q_linear_where)
register("QLinearConv", domain=_DOMAIN)(microsoft_q_linear_conv)
register("QGemm", domain=_DOMAIN)(q_gemm)
register("MatMulIntegerToFloat", domain=_DOMAIN)(matmul_integer_to_float)
register("DynamicQuantizeMatMul", domain=_DOMAIN)(dynamic_quantize_matmul)
register("MatMulNBits", domain=_DOMAIN)(matmul_n_bits)
register("QAttention", domain=_DOMAIN)(q_attention)
register("QEmbedLayerNormalization", domain=_DOMAIN)(q_embed_layer_normalization)
register("GatherBlockQuantized", domain=_DOMAIN)(gather_block_quantized)
register("QuantizeLinear", domain=_DOMAIN)(quantize_linear)
register("DequantizeLinear", domain=_DOMAIN)(dequantize_linear)
