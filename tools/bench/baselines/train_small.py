"""A training step of a net of 2,074 parameters (32 → 48 → 10) on 16 rows: most of it is the call itself."""

from __future__ import annotations

import numpy as np
import torch
from pfvm.tools.bench.baselines.train_mlp import LR, MOMENTUM, Mlp, jax_step
from pfvm.tools.bench.baselines.train_steps import Batch, TorchStep, step_of

__all__ = ["batch", "jax_step", "torch_step"]

ROWS, INPUTS, HIDDEN, CLASSES = 16, 32, 48, 10


def batch() -> Batch:
    random = np.random.default_rng(0)
    return {"x": random.standard_normal((ROWS, INPUTS), np.float32), "t": random.integers(0, CLASSES, ROWS)}


def torch_step() -> TorchStep:
    """In PyTorch."""
    model = Mlp(INPUTS, HIDDEN, CLASSES)
    return model, step_of(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM))
