"""A Llama-style net of six layers by hand in JAX: rotary positions, causal attention, SiLU-gated layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pfvm.tools.bench.baselines.jax_layers import TRANSFORMER_FLAGS, Built, Random, attention, built, token_ids
from pfvm.tools.bench.baselines.transformer import HEADS, LAYERS, VOCABULARY, WIDTH

_HIDDEN, _SEQUENCE = 2048, 128


def build() -> Built:
    random = Random()
    layers = [
        {
            "qkv": random.weight(WIDTH, 3 * WIDTH),
            "out": random.weight(WIDTH, WIDTH),
            "gate_up": random.weight(WIDTH, 2 * _HIDDEN),
            "down": random.weight(_HIDDEN, WIDTH),
            "norms": (random.vector(WIDTH, 1.0), random.vector(WIDTH, 1.0)),
        }
        for _ in range(LAYERS)
    ]
    params = {"words": random.weight(VOCABULARY, WIDTH), "layers": layers, "norm": random.vector(WIDTH, 1.0)}
    return built(_net, params, token_ids(), TRANSFORMER_FLAGS)


def _rms(x: Any, weight: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def _net(params: Any, ids: Any) -> Any:
    size = WIDTH // HEADS
    angles = np.outer(np.arange(_SEQUENCE), 10000.0 ** (-np.arange(0, size, 2) / size))
    cos, sin = (f(np.tile(angles, 2)).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    mask = np.triu(np.full((_SEQUENCE, _SEQUENCE), -1e9, np.float32), 1)
    x = params["words"][ids[0]]
    for each in params["layers"]:
        y = (_rms(x, each["norms"][0]) @ each["qkv"]).reshape(_SEQUENCE, 3 * HEADS, size)
        q, k, v = jnp.split(y, 3, axis=1)
        y = attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, mask)
        x = x + y.reshape(x.shape) @ each["out"]
        gate, up = jnp.split(_rms(x, each["norms"][1]) @ each["gate_up"], 2, axis=-1)
        x = x + (jax.nn.silu(gate) * up) @ each["down"]
    return _rms(x, params["norm"])[None]


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin
