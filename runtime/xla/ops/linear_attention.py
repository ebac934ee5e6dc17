"""Attention as a recurrence: a matrix of state instead of a softmax over all keys."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def linear_attention(
    ctx: Context, node: ir.Node, query: Any, key: Any, value: Any, past: Any = None, decay: Any = None, beta: Any = None
) -> Any:
    """query, key, value: (batch, time, heads · dim). State: (batch, kv heads, key dim, value dim), in float32.

    update_rule "gated…": the state decays by exp(decay) at each step; "…delta": it learns the difference between the
    value and what it recalls for the key.
    """
    rule = ctx.attr("update_rule")
    heads, kv_heads = ctx.attr("q_num_heads"), ctx.attr("kv_num_heads")
    q, k, v = (_steps(x, h) for x, h in ((query, heads), (key, kv_heads), (value, kv_heads)))
    batch, depth, width = query.shape[0], q.shape[-1], v.shape[-1]
    scale = np.float32(ctx.attr("scale", None) or 1 / math.sqrt(depth))
    gates = _steps(decay, kv_heads) if rule.startswith("gated") else None
    rates = _steps(beta, beta.shape[-1]) if rule.endswith("delta") else None
    start = jnp.zeros((batch, kv_heads, depth, width), jnp.float32) if past is None else past.astype(jnp.float32)

    def step(state: Any, this: Any) -> tuple[Any, Any]:
        q_t, k_t, v_t, gate, rate = this
        if gate is not None:
            state = state * jnp.exp(gate)[..., None]
        if rate is not None:
            v_t = rate * (v_t - jnp.einsum("bhdm,bhd->bhm", state, k_t))
        state = state + k_t[..., :, None] * v_t[..., None, :]
        seen = q_t.reshape(batch, kv_heads, heads // kv_heads, depth)
        return state, scale * jnp.einsum("bhgd,bhdm->bhgm", seen, state).reshape(batch, heads * width)

    final, y = lax.scan(step, start, (q, k, v, gates, rates))
    return jnp.swapaxes(y, 0, 1).astype(query.dtype), final.astype(query.dtype if past is None else past.dtype)


def _steps(x: Any, heads: int) -> Any:
    """(batch, time, heads · dim) → (time, batch, heads, dim) in float32."""
    batch, time, _ = x.shape
    return x.reshape(batch, time, heads, -1).swapaxes(0, 1).astype(jnp.float32)


register("LinearAttention", since=27)(linear_attention)
