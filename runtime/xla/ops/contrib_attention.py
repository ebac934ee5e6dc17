"""com.microsoft's attention operators, as exporters and ONNX Runtime's optimizer write them.

Inside, queries are (batch, heads, time, dim) and keys and values (batch, heads, total, dim).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register

_DOMAIN = "com.microsoft"


def scores_of(ctx: Context, q: Any, k: Any) -> Any:
    """Scaled products of queries and keys in float32 (or wider). Heads of `k` may be shared by groups of queries'."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scale = ctx.attr("scale", None) or 1 / math.sqrt(q.shape[-1])
    k = _repeated(k, q.shape[1])
    return jnp.einsum("bnsd,bntd->bnst", q.astype(wide), k.astype(wide)) * np.asarray(scale, wide)


def weighted(probabilities: Any, v: Any) -> Any:
    """(batch, time, heads · dim), in the values' type."""
    v = _repeated(v, probabilities.shape[1])
    y = jnp.einsum("bnst,bntd->bsnd", probabilities, v.astype(probabilities.dtype))
    return y.reshape(*y.shape[:2], -1).astype(v.dtype)


def _repeated(x: Any, heads: int) -> Any:
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def split_heads(x: Any, heads: int) -> Any:
    """(batch, time, heads · dim) → (batch, heads, time, dim)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def future(queries: int, keys: int) -> np.ndarray:
    """(queries, keys): keys that come after the query, where the last query sees the last key."""
    return np.arange(keys)[None, :] > np.arange(queries)[:, None] + keys - queries


def masked(ctx: Context, scores: Any, mask: Any) -> Any:
    """Adds mask_filter_value where `mask` excludes keys; then hides the future where the node is unidirectional."""
    if mask is not None:
        penalty = np.asarray(ctx.attr("mask_filter_value", None) or -10000.0, scores.dtype)
        scores = scores + jnp.where(_allowed(ctx, mask, scores.shape), np.zeros((), scores.dtype), penalty)
    if ctx.attr("unidirectional", 0):
        scores = jnp.where(future(*scores.shape[2:]), np.finfo(np.float32).min, scores)
    return scores


def _allowed(ctx: Context, mask: Any, shape: tuple[int, ...]) -> Any:
    """A mask in any of its forms, as bool that broadcasts against (batch, heads, time, total)."""
    batch, _, time, total = shape
    if mask.ndim == 1:
        keys = jnp.arange(total)
        if mask.shape[0] == batch:  # number of keys
            return (keys < mask[:, None])[:, None, None, :]
        if mask.shape[0] == 2 * batch:  # ends, then starts
            return ((keys < mask[:batch, None]) & (keys >= mask[batch:, None]))[:, None, None, :]
        raise ctx.unsupported(f"a mask of shape {list(mask.shape)}")
    if mask.ndim == 2:
        return (mask > 0)[:, None, None, :]
    if mask.ndim == 3:
        return (mask > 0)[:, None]
    past = total - time  # (batch, 1, longest, longest)
    return mask[:, :, past : past + time, :total] > 0


def attention(
    ctx: Context, node: ir.Node, x: Any, w: Any, b: Any = None, mask: Any = None, past: Any = None, bias: Any = None,
    past_length: Any = None,
) -> Any:  # fmt: skip
    """One product makes queries, keys and values; `past` and `present` are (2, batch, heads, time, dim)."""
    sizes = ctx.attr("qkv_hidden_sizes", None) or [w.shape[1] // 3] * 3
    _refuse(ctx, do_rotary=ctx.attr("do_rotary", 0), past_present_share_buffer=past_length is not None)
    projected = jnp.matmul(x, w) if b is None else jnp.matmul(x, w) + b
    return attend(ctx, projected, sizes, mask, past, bias)


def attend(ctx: Context, projected: Any, sizes: list[int], mask: Any, past: Any, bias: Any = None) -> Any:
    """Output and present from the queries, keys and values side by side on the last axis."""
    heads = ctx.attr("num_heads")
    parts = jnp.split(projected, np.cumsum(sizes)[:2], axis=-1)
    q, k, v = (split_heads(part, heads) for part in parts)
    if past is not None:
        k, v = jnp.concatenate([past[0], k], 2), jnp.concatenate([past[1], v], 2)
    scores = masked(ctx, scores_of(ctx, q, k), mask)
    probabilities = jax.nn.softmax(scores if bias is None else scores + bias.astype(scores.dtype))
    present = jnp.stack([k, v]) if ctx.wants(1) else None
    return weighted(probabilities, v), present


def multi_head_attention(
    ctx: Context, node: ir.Node, query: Any, key: Any = None, value: Any = None, b: Any = None, padding: Any = None,
    bias: Any = None, past_key: Any = None, past_value: Any = None, past_length: Any = None, indirection: Any = None,
) -> Any:  # fmt: skip
    """Queries (batch, time, hidden), or packed with keys and values (batch, time, heads, 3, dim); keys may come packed
    with values (…, 2, dim), or with heads split already (from a cross-attention cache).
    """
    _refuse(ctx, cache_indirection=indirection is not None, past_sequence_length=past_length is not None)
    heads = ctx.attr("num_heads")
    q, k, v = _packed(ctx, query, key, value, heads, b)
    if past_key is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    scores = scores_of(ctx, q, k)
    scores = masked(ctx, scores, padding)
    scores = scores if bias is None else scores + bias.astype(scores.dtype)
    y = weighted(jax.nn.softmax(scores), v)
    return y, k, v, scores.astype(query.dtype)


def _packed(ctx: Context, query: Any, key: Any, value: Any, heads: int, b: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values with heads split and the bias added (none for a cache)."""
    if query.ndim == 5:
        parts = [query[:, :, :, i].swapaxes(1, 2) for i in range(3)]
    elif key is not None and key.ndim == 5:
        parts = [split_heads(query, heads), *(key[:, :, :, i].swapaxes(1, 2) for i in range(2))]
    elif key is None:
        raise ctx.unsupported("queries without keys")
    else:
        parts = [split_heads(query, heads), *(x if x.ndim == 4 else split_heads(x, heads) for x in (key, value))]
    if b is None:
        return parts[0], parts[1], parts[2]
    widths = np.cumsum([heads * part.shape[-1] for part in parts])
    offsets = [o.reshape(1, heads, 1, -1) for o in jnp.split(b, widths[:2])]
    cached = (False, key is not None and key.ndim == 4, value is not None and value.ndim == 4)
    q, k, v = (part if skip else part + o for part, o, skip in zip(parts, offsets, cached))
    return q, k, v


def decoder_masked_multi_head_attention(
    ctx: Context, node: ir.Node, query: Any, key: Any, value: Any = None, mask: Any = None, bias: Any = None,
    past_key: Any = None, past_value: Any = None, past_length: Any = None, beam_width: Any = None,
    indirection: Any = None, b: Any = None,
) -> Any:  # fmt: skip
    """One step of decoding; here only across to an encoder's keys and values, which come with heads split."""
    if past_key is not None or key.ndim != 4:
        raise ctx.unsupported("self-attention over a cache of beams")
    return multi_head_attention(ctx, node, query, key, value, b, mask, bias)


def group_query_attention(
    ctx: Context, node: ir.Node, query: Any, key: Any, value: Any, past_key: Any, past_value: Any, last: Any,
    total: Any, cos: Any = None, sin: Any = None, positions: Any = None, bias: Any = None, sink: Any = None,
    *extra: Any,
) -> Any:  # fmt: skip
    """Causal, keys shared by groups of queries. `last` (batch,): number of keys in each sequence, less one; `total`:
    the largest number. Keys of the past stand in front of a buffer; the present has the size of the larger of both.
    """
    heads, kv_heads = ctx.attr("num_heads"), ctx.attr("kv_num_heads")
    quantized = any(ctx.attr(f"{n}_quant_type", "NONE") != "NONE" for n in "kv")
    _refuse(ctx, inputs_beyond_the_12th=any(e is not None for e in extra), quantized_cache=quantized,
            qk_output=ctx.attr("qk_output", 0), causal_0=not ctx.attr("causal", 1),
            sliding_window_cache=ctx.attr("sliding_window_cache", 0))  # fmt: skip
    if key is None:
        size = query.shape[-1] // (heads + 2 * kv_heads)
        query, key, value = jnp.split(query, [heads * size, (heads + kv_heads) * size], axis=-1)
    q, k, v = split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)
    steps, longest = q.shape[2], ctx.ints(total)[0]
    lengths = last.reshape(-1).astype(jnp.int32) + 1
    before = jnp.zeros_like(lengths) if steps == longest else lengths - steps
    at = before[:, None] + jnp.arange(steps)
    if ctx.attr("do_rotary", 0):
        where = at if positions is None else positions
        q, k = (rotate(x, where, cos, sin, bool(ctx.attr("rotary_interleaved", 0))) for x in (q, k))
    k, v = (_appended(past, new, before, longest) for past, new in ((past_key, k), (past_value, v)))
    scores = scores_of(ctx, q, k)
    softcap = ctx.attr("softcap", 0.0) or 0.0
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    if bias is not None:
        scores = scores.at[..., : bias.shape[-1]].add(bias.astype(scores.dtype))
    keys = jnp.arange(k.shape[2])
    hidden = keys > at[..., None]
    window = ctx.attr("local_window_size", -1)
    if window > 0:
        hidden |= keys <= at[..., None] - window
    scores = jnp.where(hidden[:, None], -jnp.inf, scores)
    if sink is not None or ctx.attr("smooth_softmax", 0) > 0:
        probabilities = _softmax_with_sink(scores, 0 if sink is None else sink.reshape(1, -1, 1, 1))
    else:
        probabilities = jax.nn.softmax(scores)
    return weighted(probabilities, v), k, v


def _appended(past: Any, new: Any, before: Any, longest: int) -> Any:
    """The new steps written behind each sequence's own past, in a buffer that holds `longest`; zeros after that."""
    size = longest if past is None else max(longest, past.shape[2])
    buffer = jnp.zeros((*new.shape[:2], size, new.shape[3]), new.dtype)
    if past is not None:
        own = jnp.arange(past.shape[2])[None, :] < before[:, None]
        buffer = buffer.at[:, :, : past.shape[2]].set(jnp.where(own[:, None, :, None], past, 0))
    batch = jnp.arange(new.shape[0])[:, None]
    steps = before[:, None] + jnp.arange(new.shape[2])
    return buffer.at[batch, :, steps].set(new.swapaxes(1, 2), mode="drop")


def _softmax_with_sink(scores: Any, sink: Any) -> Any:
    """A softmax with one more entry, `sink`, that takes its share and is left out."""
    top = jnp.maximum(jnp.max(scores, -1, keepdims=True), sink)
    shares = jnp.exp(scores - top)
    return shares / (jnp.sum(shares, -1, keepdims=True) + jnp.exp(sink - top))


def rotary_embedding(ctx: Context, node: ir.Node, x: Any, positions: Any, cos: Any, sin: Any) -> Any:
    """x: (batch, time, hidden) or (batch, heads, time, dim). One position is the first of consecutive ones."""
    _refuse(ctx, scale=(ctx.attr("scale", 1.0) or 1.0) != 1.0)
    width = ctx.attr("rotary_embedding_dim", 0) or 0
    heads = ctx.attr("num_heads", 0) or 0
    if x.ndim == 3:
        size = 2 * cos.shape[1] if not width else x.shape[-1] // heads
        split = x.reshape(*x.shape[:2], -1, size).swapaxes(1, 2)
    else:
        split = x
    steps = jnp.arange(split.shape[2])
    at = positions.reshape(()) + steps[None] if positions.ndim == 1 else positions
    ctx.expect_indices(at, cos.shape, of=2, lowest=0)
    y = rotate(split, at, cos, sin, bool(ctx.attr("interleaved", 0)))
    return y.swapaxes(1, 2).reshape(x.shape) if x.ndim == 3 else y


def rotate(x: Any, positions: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """x (batch, heads, time, dim): the first 2 · cos.shape[1] numbers of each row turn as pairs."""
    half = cos.shape[1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    c, s = (jnp.take(table, positions, axis=0)[:, None].astype(x.dtype) for table in (cos, sin))
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        pairs = jnp.concatenate([a * c - b * s, a * s + b * c], -1)
    return jnp.concatenate([pairs, rest], -1)


def _refuse(ctx: Context, **forms: Any) -> None:
    """UnsupportedOpError that names the first form that the node has."""
    for name, present in forms.items():
        if present:
            raise ctx.unsupported(name.replace("_", " "))


register("Attention", domain=_DOMAIN)(attention)
register("MultiHeadAttention", domain=_DOMAIN)(multi_head_attention)
register("DecoderMaskedMultiHeadAttention", domain=_DOMAIN)(decoder_masked_multi_head_attention)
register("GroupQueryAttention", domain=_DOMAIN)(group_query_attention)
register("RotaryEmbedding", domain=_DOMAIN)(rotary_embedding)
