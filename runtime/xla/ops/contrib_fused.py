"""com.microsoft's fusions of ordinary operators: normalizations with what stands around them, activations behind
products, and small relatives of standard operators.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.conv import conv
from pfvm.runtime.xla.ops.creation import trilu
from pfvm.runtime.xla.ops.gather_scatter import gather_nd
from pfvm.runtime.xla.ops.pool import max_pool
from pfvm.runtime.xla.registry import register

_DOMAIN = "com.microsoft"


def _wide(*operands: Any) -> list[Any]:
    """In float32 at least; absent ones stay absent."""
    return [None if x is None else x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in operands]


def _normalized(x: Any, epsilon: float, centre: bool) -> tuple[Any, Any, Any]:
    """Over the last axis: (normalized, mean, 1 / deviation)."""
    mean = jnp.mean(x, -1, keepdims=True)
    centred = x - mean if centre else x
    inverse = lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + np.asarray(epsilon, x.dtype))
    return centred * inverse, mean, inverse


def _skip(ctx: Context, x: Any, skip: Any, gamma: Any, beta: Any, bias: Any, centre: bool) -> Any:
    """Half precision is rounded once, at the end."""
    wide, skip, gamma, beta, bias = _wide(x, skip, gamma, beta, bias)
    total = wide + skip if bias is None else wide + skip + bias
    y, mean, inverse = _normalized(total, ctx.attr("epsilon", None) or 1e-12, centre)
    y = y * gamma if beta is None else y * gamma + beta
    return y.astype(x.dtype), mean, inverse, total.astype(x.dtype)


def skip_layer_normalization(
    ctx: Context, node: ir.Node, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None
) -> Any:
    return _skip(ctx, x, skip, gamma, beta, bias, centre=True)


def skip_simplified_layer_normalization(
    ctx: Context, node: ir.Node, x: Any, skip: Any, gamma: Any, bias: Any = None
) -> Any:
    return _skip(ctx, x, skip, gamma, None, bias, centre=False)


def simplified_layer_normalization(ctx: Context, node: ir.Node, x: Any, scale: Any) -> Any:
    """Over the axes from `axis` on, without a mean; in the standard's domain, where ONNX Runtime put it."""
    axis = ctx.attr("axis", -1) % x.ndim
    (flat,) = _wide(x.reshape(*x.shape[:axis], -1))
    y, _, inverse = _normalized(flat, ctx.attr("epsilon", 1e-5), centre=False)
    return y.reshape(x.shape).astype(x.dtype) * scale, inverse.reshape(*x.shape[:axis], *(1,) * (x.ndim - axis))


def embed_layer_normalization(
    ctx: Context, node: ir.Node, ids: Any, segments: Any, words: Any, places: Any, segment_table: Any, gamma: Any,
    beta: Any, mask: Any = None, positions: Any = None,
) -> Any:  # fmt: skip
    """(normalized sum of embeddings, number of unmasked tokens in each sequence, the sum)."""
    at = np.arange(ids.shape[1])[None] if positions is None else positions
    for number, (table, rows) in enumerate(((words, ids), (places, at), (segment_table, segments)), 2):
        if rows is not None:
            ctx.expect_indices(rows, table.shape, of=number, lowest=0)
    total = jnp.take(words, ids, axis=0) + jnp.take(places, at, axis=0)
    if segments is not None:
        total = total + jnp.take(segment_table, segments, axis=0)
    (wide,) = _wide(total)
    y = _normalized(wide, ctx.attr("epsilon", None) or 1e-12, centre=True)[0].astype(total.dtype) * gamma + beta
    count = jnp.zeros(ids.shape[0], jnp.int32) if mask is None else jnp.sum(mask > 0, 1).astype(jnp.int32)
    return y, count, total


def fused_conv(ctx: Context, node: ir.Node, x: Any, w: Any, b: Any = None, z: Any = None) -> Any:
    y = conv(ctx, node, x, w, b)
    parameters = ctx.attr("activation_params", None) or []
    return _activated(ctx, y if z is None else y + z, ctx.attr("activation", None), list(parameters))


def fused_gemm(ctx: Context, node: ir.Node, a: Any, b: Any, c: Any = None) -> Any:
    a = a.T if ctx.attr("transA", 0) else a
    b = b.T if ctx.attr("transB", 0) else b
    y = jnp.matmul(a, b) * np.asarray(ctx.attr("alpha", 1.0), a.dtype)
    y = y if c is None else y + c * np.asarray(ctx.attr("beta", 1.0), a.dtype)
    given = [ctx.attr(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    return _activated(ctx, y, ctx.attr("activation", None), [v for v in given if v is not None])


def _activated(ctx: Context, x: Any, name: str | None, parameters: list[float]) -> Any:
    values = [np.asarray(p, x.dtype) for p in parameters]
    match name or "":
        case "":
            return x
        case "Relu":
            return jnp.maximum(x, 0)
        case "Tanh":
            return jnp.tanh(x)
        case "Sigmoid":
            return jax.nn.sigmoid(x)
        case "LeakyRelu":
            return jnp.where(x >= 0, x, (values[0] if values else np.asarray(0.01, x.dtype)) * x)
        case "Clip" if len(values) == 2:
            return jnp.clip(x, values[0], values[1])
        case "HardSigmoid" if len(values) == 2:
            return jnp.clip(values[0] * x + values[1], 0, 1)
    raise ctx.unsupported(f"activation {name!r}")


def nhwc_max_pool(ctx: Context, node: ir.Node, x: Any) -> Any:
    return jnp.moveaxis(max_pool(ctx, node, jnp.moveaxis(x, -1, 1)), 1, -1)


def bias_softmax(ctx: Context, node: ir.Node, x: Any, bias: Any) -> Any:
    """Softmax over the axes from `axis` on. Unless is_inner_broadcast, the bias repeats along the axes before `axis`
    that it has more of: batch 0 … k - 1 share its first row, and so on.
    """
    axis = ctx.attr("axis", 1) % x.ndim
    if not ctx.attr("is_inner_broadcast", 1) and bias.ndim == x.ndim and bias.shape != x.shape:
        raise ctx.unsupported("is_inner_broadcast=0")
    total = x + bias
    flat = total.reshape(*x.shape[:axis], -1)
    return jax.nn.softmax(flat, axis=-1).reshape(x.shape)


def bias_dropout(
    ctx: Context, node: ir.Node, x: Any, bias: Any, residual: Any = None, ratio: Any = None, training: Any = None
) -> Any:
    """At inference."""
    if training is not None and bool(ctx.concrete(training).reshape(())):
        raise ctx.unsupported("training mode")
    y = x + bias
    return (y if residual is None else y + residual), jnp.ones(x.shape, bool)


def expand_dims(ctx: Context, node: ir.Node, x: Any, axis: Any) -> Any:
    return ctx.xp.expand_dims(x, ctx.ints(axis)[0])


def inverse(ctx: Context, node: ir.Node, x: Any) -> Any:
    return jnp.linalg.inv(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)


def microsoft_trilu(ctx: Context, node: ir.Node, x: Any, k: Any = None) -> Any:
    if ctx.attr("upper", None) is None:
        return jnp.triu(x, 0 if k is None else ctx.ints(k)[0])
    return trilu(ctx, node, x, k)


def pairwise_distance(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    """(rows of a, rows of b)."""
    difference = a[:, None, :] - b[None]
    square = jnp.sum(difference * difference, -1)
    return square if ctx.attr("metric", "sqeuclidean") == "sqeuclidean" else jnp.sqrt(square)


def microsoft_range(ctx: Context, node: ir.Node, start: Any, limit: Any, delta: Any = None) -> Any:
    first, last = (ctx.concrete(v).reshape(()).item() for v in (start, limit))
    step = 1 if delta is None else ctx.concrete(delta).reshape(()).item()
    return np.arange(first, last, step).astype(start.dtype)


def bias_split_gelu(ctx: Context, node: ir.Node, x: Any, bias: Any) -> Any:
    """The first half of the last axis times the Gelu of the second."""
    left, right = jnp.split(x + bias, 2, axis=-1)
    return left * jax.nn.gelu(right, approximate=False)


def complex_product(conjugate: bool) -> Any:
    """Real and imaginary parts alternate on the last axis."""

    def rule(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
        x, y = (v.reshape(*v.shape[:-1], -1, 2) for v in (a, b))
        sign = -1 if conjugate else 1
        real = x[..., 0] * y[..., 0] - sign * x[..., 1] * y[..., 1]
        imaginary = x[..., 1] * y[..., 0] + sign * x[..., 0] * y[..., 1]
        z = jnp.stack([real, imaginary], -1)
        return z.reshape(*z.shape[:-2], -1)

    return rule


register("SkipLayerNormalization", domain=_DOMAIN)(skip_layer_normalization)
register("SkipSimplifiedLayerNormalization", domain=_DOMAIN)(skip_simplified_layer_normalization)
register("SimplifiedLayerNormalization")(simplified_layer_normalization)
register("SimplifiedLayerNormalization", domain=_DOMAIN)(simplified_layer_normalization)
register("EmbedLayerNormalization", domain=_DOMAIN)(embed_layer_normalization)
register("FusedConv", domain=_DOMAIN)(fused_conv)
register("FusedGemm", domain=_DOMAIN)(fused_gemm)
register("NhwcMaxPool", domain=_DOMAIN)(nhwc_max_pool)
register("BiasSoftmax", domain=_DOMAIN)(bias_softmax)
register("BiasDropout", domain=_DOMAIN)(bias_dropout)
register("ExpandDims", domain=_DOMAIN, place="host")(expand_dims)
register("Inverse", domain=_DOMAIN)(inverse)
register("Trilu", domain=_DOMAIN)(microsoft_trilu)
register("GatherND", domain=_DOMAIN)(gather_nd)
register("CDist", domain=_DOMAIN)(pairwise_distance)
register("Range", domain=_DOMAIN, place="host")(microsoft_range)
register("BiasAdd", domain=_DOMAIN)(lambda ctx, node, x, bias, skip: x + bias + skip)
register("BiasSplitGelu", domain=_DOMAIN)(bias_split_gelu)
register("ComplexMul", domain=_DOMAIN)(complex_product(False))
register("ComplexMulConj", domain=_DOMAIN)(complex_product(True))
