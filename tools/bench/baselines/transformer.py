"""Transformer layers as BERT and ViT have them, by hand in JAX: width 768, 12 heads, the three projections in one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from pfvm.tools.bench.baselines.jax_layers import Random, attention, gelu, layer_norm, linear

WIDTH, HEADS, LAYERS, HIDDEN, VOCABULARY = 768, 12, 6, 3072, 30522


def norm(random: Random) -> tuple[Any, Any]:
    return random.vector(WIDTH, 1.0), random.vector(WIDTH)


def layer(random: Random) -> dict[str, Any]:
    return {
        "qkv": random.linear(WIDTH, 3 * WIDTH),
        "out": random.linear(WIDTH, WIDTH),
        "up": random.linear(WIDTH, HIDDEN),
        "down": random.linear(HIDDEN, WIDTH),
        "norms": (norm(random), norm(random)),
    }


def self_attention(x: Any, params: Any) -> Any:
    q, k, v = jnp.split(linear(x, params["qkv"]).reshape(x.shape[0], 3 * HEADS, -1), 3, axis=1)
    return linear(attention(q, k, v).reshape(x.shape), params["out"])


def feed_forward(x: Any, params: Any) -> Any:
    return linear(gelu(linear(x, params["up"])), params["down"])


def post_norm(x: Any, params: Any) -> Any:
    x = layer_norm(x + self_attention(x, params), params["norms"][0])
    return layer_norm(x + feed_forward(x, params), params["norms"][1])


def pre_norm(x: Any, params: Any) -> Any:
    x = x + self_attention(layer_norm(x, params["norms"][0]), params)
    return x + feed_forward(layer_norm(x, params["norms"][1]), params)
