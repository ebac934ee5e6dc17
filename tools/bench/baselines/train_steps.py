"""What the yardsticks of training share: losses and optimizers by hand in JAX, the step in PyTorch.

A yardstick is a module with ``batch()``, ``torch_step()`` and ``jax_step(weights)``, where `weights` are the arrays of
the PyTorch module's state_dict: all start from the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

Arrays = Mapping[str, np.ndarray]
Batch = dict[str, Any]
# The module, and a step on {"x", "t"} that returns {"loss"}.
TorchStep = tuple[nn.Module, Callable[[Batch], Batch]]
# (state, batch) → (state, loss), and the first state.
JaxStep = tuple[Callable[[Any, Batch], tuple[Any, Any]], Any]


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None = None) -> Callable[[Batch], Batch]:
    """The whole step of a module that computes its loss."""

    def step(batch: Batch) -> Batch:
        optimizer.zero_grad()
        loss = model(batch["x"], batch["t"])
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return {"loss": loss}

    return step


def momentum(loss: Callable[[Any, Batch], Any], params: Any, lr: float, factor: float) -> JaxStep:
    """SGD as torch.optim has it."""

    def step(state: Any, batch: Batch) -> tuple[Any, Any]:
        params, moving = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        moving = jax.tree.map(lambda m, g: factor * m + g, moving, gradients)
        return (jax.tree.map(lambda p, m: p - lr * m, params, moving), moving), value

    return step, (params, jax.tree.map(jnp.zeros_like, params))


def adamw(loss: Callable[[Any, Batch], Any], params: Any, lr: float, decay: float, clip: float) -> JaxStep:
    """AdamW as torch.optim has it, after the norm of all gradients was clipped."""
    b1, b2, eps = 0.9, 0.999, 1e-8

    def step(state: Any, batch: Batch) -> tuple[Any, Any]:
        params, first, second, count = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients)))
        scale = jnp.minimum(1.0, clip / (norm + 1e-6))
        count = count + 1
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * (g * scale), first, gradients)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g * scale), second, gradients)
        size, root = lr / (1 - b1**count), jnp.sqrt(1 - b2**count)

        def update(p: Any, m: Any, v: Any) -> Any:
            return p * (1 - lr * decay) - size * m / (jnp.sqrt(v) / root + eps)

        return (jax.tree.map(update, params, first, second), first, second, count), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    return step, (params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.float32))
