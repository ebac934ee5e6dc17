"""A training step of the MNIST example's MLP (1024 → 256 → 10) on 64 images: SGD with momentum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from pfvm.tools.bench.baselines.jax_layers import cross_entropy, linear
from pfvm.tools.bench.baselines.train_steps import Arrays, Batch, JaxStep, TorchStep, momentum, step_of
from torch import nn

BATCH, INPUTS, HIDDEN, CLASSES = 64, 1024, 256, 10
LR, MOMENTUM = 0.1, 0.9


class Mlp(nn.Module):
    def __init__(self, inputs: int = INPUTS, hidden: int = HIDDEN, classes: int = CLASSES) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.linear2(torch.relu(self.linear1(x))), t)


def batch() -> Batch:
    random = np.random.default_rng(0)
    return {"x": random.standard_normal((BATCH, INPUTS), np.float32), "t": random.integers(0, CLASSES, BATCH)}


def torch_step() -> TorchStep:
    """In PyTorch."""
    model = Mlp()
    return model, step_of(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM))


def jax_step(weights: Arrays) -> JaxStep:
    """By hand in JAX: weights inputs × outputs."""
    params = [
        (jnp.asarray(weights[f"{n}.weight"].T), jnp.asarray(weights[f"{n}.bias"])) for n in ("linear1", "linear2")
    ]

    def loss(params: Any, batch: Batch) -> Any:
        return cross_entropy(linear(jax.nn.relu(linear(batch["x"], params[0])), params[1]), batch["t"])

    return momentum(loss, params, LR, MOMENTUM)
