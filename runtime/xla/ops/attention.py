"""Attention in float: scaled products, a softmax, and the product with the values. Other forms are schema functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register

from .activations import softmax_along
from .contrib_attention import split_heads

_PLAIN = {"scale", "is_causal", "q_num_heads", "kv_num_heads"}


def attention(ctx: Context, node: ir.Node, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """q: (batch, heads, time, dim) or (batch, time, heads · dim), k and v alike, their heads shared by groups of q's.

    mask: added, or True where a key counts; it broadcasts to (batch, heads, time, keys). The result of a query without
    a key is 0.
    """
    joined = q.ndim == 3
    if joined:
        count, shared = ctx.attr("q_num_heads"), ctx.attr("kv_num_heads")
        q, k, v = split_heads(q, count), split_heads(k, shared), split_heads(v, shared)
    batch, heads, time, _ = q.shape
    kept, keys = k.shape[1], k.shape[2]
    scale = ctx.attr("scale", None)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    grouped = (q * np.asarray(scale, q.dtype)).reshape(batch, kept, heads // kept, time, q.shape[-1])
    scores = jnp.einsum("bkgsd,bktd->bkgst", grouped, k).reshape(batch, heads, time, keys)
    bias = _bias(mask, bool(ctx.attr("is_causal")), time, keys, q.dtype)
    probabilities = softmax_along(scores if bias is None else scores + bias, axis=3)
    y = jnp.einsum("bkgst,bktd->bkgsd", probabilities.reshape(batch, kept, heads // kept, time, keys), v)
    y = y.reshape(batch, heads, time, v.shape[-1])
    if mask is not None:
        y = jnp.where(jnp.max(bias, -1, keepdims=True) == -jnp.inf, np.zeros((), y.dtype), y)
    return y.swapaxes(1, 2).reshape(batch, time, -1) if joined else y


def _bias(mask: Any, is_causal: bool, time: int, keys: int, dtype: np.dtype) -> Any:
    """What is added to the scores; None for nothing."""
    bias = None
    if is_causal:
        bias = np.where(np.tri(time, keys, dtype=bool), 0, -np.inf).astype(dtype)
    if mask is None:
        return bias
    added = jnp.where(mask, np.zeros((), dtype), np.asarray(-np.inf, dtype)) if mask.dtype == bool else mask
    return added if bias is None else added + bias


def _takes(node: ir.Node, operands: Sequence[Any]) -> bool:
    """Float operands, a mask of every key at most, and one result."""
    if set(node.attributes) - _PLAIN or any(out.uses() or out.is_graph_output() for out in node.outputs[1:]):
        return False
    if any(operand is not None for operand in operands[4:]) or any(o is None for o in operands[:3]):
        return False
    if any(operand.dtype != np.float32 or operand.size == 0 for operand in operands[:3]):
        return False
    mask, keys = operands[3] if len(operands) > 3 else None, operands[1]
    if mask is None:
        return True
    return mask.dtype in (np.float32, np.bool_) and mask.ndim > 0 and mask.shape[-1] == keys.shape[-2]


register("Attention", since=23, takes=_takes)(attention)
