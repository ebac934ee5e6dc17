"""Six layers of ViT-B/16 by hand in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from pfvm.tools.bench.baselines.jax_layers import TRANSFORMER_FLAGS, Built, Random, built, image, layer_norm, linear
from pfvm.tools.bench.baselines.transformer import LAYERS, WIDTH, layer, norm, pre_norm


def build() -> Built:
    random = Random()
    params = {
        "patches": random.linear(16 * 16 * 3, WIDTH),
        "token": random.weight(1, WIDTH),
        "positions": random.weight(197, WIDTH),
        "layers": [layer(random) for _ in range(LAYERS)],
        "norm": norm(random),
        "head": random.linear(WIDTH, 1000),
    }
    return built(_net, params, image(), TRANSFORMER_FLAGS)


def _net(params: Any, image: Any) -> Any:
    patches = image[0].reshape(3, 14, 16, 14, 16).transpose(1, 3, 0, 2, 4).reshape(196, -1)
    x = jnp.concatenate([params["token"], linear(patches, params["patches"])]) + params["positions"]
    for each in params["layers"]:
        x = pre_norm(x, each)
    return linear(layer_norm(x[:1], params["norm"]), params["head"])
