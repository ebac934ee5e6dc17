"""A training step of a 6-layer transformer that predicts the next token: width 256, 8 heads, 8 × 64 tokens; AdamW,
gradients clipped to norm 1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from pfvm.tools.bench.baselines.jax_layers import cross_entropy, gelu, layer_norm, linear
from pfvm.tools.bench.baselines.train_steps import Arrays, Batch, JaxStep, TorchStep, adamw, step_of
from torch import nn

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY = 6, 256, 8, 1024, 1000
ROWS, SEQUENCE = 8, 64
LR, DECAY, CLIP = 1e-3, 0.01, 1.0


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(
        self,
        layers: int = LAYERS,
        width: int = WIDTH,
        heads: int = HEADS,
        hidden: int = HIDDEN,
        vocabulary: int = VOCABULARY,
        sequence: int = SEQUENCE,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return nn.functional.cross_entropy(self.head(self.norm(h)).flatten(0, 1), t.flatten())


def batch() -> Batch:
    text = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, SEQUENCE + 1))
    return {"x": text[:, :-1].copy(), "t": text[:, 1:].copy()}


def torch_step() -> TorchStep:
    """In PyTorch."""
    model = Transformer()
    return model, step_of(model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY), CLIP)


def jax_step(weights: Arrays) -> JaxStep:
    """By hand in JAX: weights inputs × outputs, the layers in a Python loop."""

    def pair(name: str) -> tuple[Any, Any]:
        return jnp.asarray(weights[f"{name}.weight"].T), jnp.asarray(weights[f"{name}.bias"])

    def block(name: str) -> dict[str, Any]:
        return {part: pair(f"{name}.{part}") for part in ("norm1", "norm2", "qkv", "out", "up", "down")}

    params = {
        "tokens": jnp.asarray(weights["tokens.weight"]),
        "places": jnp.asarray(weights["places.weight"]),
        "blocks": [block(f"blocks.{i}") for i in range(LAYERS)],
        "norm": pair("norm"),
        "head": jnp.asarray(weights["head.weight"].T),
    }
    return adamw(_loss, params, LR, DECAY, CLIP)


def _attention(x: Any, params: Any) -> Any:
    b, s, w = x.shape
    q, k, v = jnp.transpose(linear(x, params["qkv"]).reshape(b, s, 3, HEADS, w // HEADS), (2, 0, 3, 1, 4))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q * np.float32((w // HEADS) ** -0.5), k)
    scores = jnp.where(np.tri(s, dtype=bool), scores, np.float32(-np.inf))
    y = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)
    return linear(jnp.swapaxes(y, 1, 2).reshape(b, s, w), params["out"])


def _loss(params: Any, batch: Batch) -> Any:
    x = params["tokens"][batch["x"]] + params["places"]
    for block in params["blocks"]:
        x = x + _attention(layer_norm(x, block["norm1"]), block)
        x = x + linear(gelu(linear(layer_norm(x, block["norm2"]), block["up"])), block["down"])
    logits = layer_norm(x, params["norm"]) @ params["head"]
    return cross_entropy(logits.reshape(-1, VOCABULARY), batch["t"].reshape(-1))
