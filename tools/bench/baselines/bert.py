"""Six layers of BERT-base by hand in JAX, sequence 128."""

from __future__ import annotations

from typing import Any

from pfvm.tools.bench.baselines.jax_layers import TRANSFORMER_FLAGS, Built, Random, built, layer_norm, token_ids
from pfvm.tools.bench.baselines.transformer import LAYERS, VOCABULARY, WIDTH, layer, norm, post_norm


def build() -> Built:
    random = Random()
    params = {
        "words": random.weight(VOCABULARY, WIDTH),
        "positions": random.weight(128, WIDTH),
        "norm": norm(random),
        "layers": [layer(random) for _ in range(LAYERS)],
    }
    return built(_net, params, token_ids(), TRANSFORMER_FLAGS)


def _net(params: Any, ids: Any) -> Any:
    x = layer_norm(params["words"][ids[0]] + params["positions"], params["norm"])
    for each in params["layers"]:
        x = post_norm(x, each)
    return x[None]
