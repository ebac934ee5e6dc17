"""Optimizer steps of ai.onnx.preview.training.

Operands: learning rate, update count, then for n tensors: all of them, all gradients, and n of each state in turn.
Results come in the same grouping, the tensors first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register

_DOMAIN = "ai.onnx.preview.training"


def _stepwise(states: int, step: Callable[..., tuple[Any, ...]]) -> Any:
    """A rule from `step(ctx, rate, count, x, gradient, *states) -> (x, *states)`."""

    def rule(ctx: Context, node: ir.Node, rate: Any, count: Any, *operands: Any) -> Any:
        group = len(operands) // (2 + states)
        columns = [operands[i * group : (i + 1) * group] for i in range(2 + states)]
        rows = []
        for x, gradient, *state in zip(*columns):
            regularized = ctx.attr("norm_coefficient", 0.0) * x + gradient
            news = step(ctx, rate.reshape(()), count.reshape(()), x, regularized, *state)
            rows.append([new.astype(old.dtype) for new, old in zip(news, (x, *state))])
        return tuple(value for column in zip(*rows) for value in column)

    return rule


def _adagrad(ctx: Context, rate: Any, count: Any, x: Any, gradient: Any, square: Any) -> tuple[Any, ...]:
    rate = rate / (1 + count * ctx.attr("decay_factor", 0.0))
    square = square + gradient * gradient
    return x - rate * gradient / (jnp.sqrt(square) + ctx.attr("epsilon")), square


def _adam(ctx: Context, rate: Any, count: Any, x: Any, gradient: Any, mean: Any, square: Any) -> tuple[Any, ...]:
    """Bias correction from the first update on (count > 0)."""
    alpha, beta = ctx.attr("alpha"), ctx.attr("beta")
    mean = alpha * mean + (1 - alpha) * gradient
    square = beta * square + (1 - beta) * (gradient * gradient)
    started = jnp.maximum(count, 1).astype(jnp.float64)
    corrected = rate * jnp.sqrt(1 - beta**started) / (1 - alpha**started)
    x = x - jnp.where(count > 0, corrected, rate) * (mean / (jnp.sqrt(square) + ctx.attr("epsilon")))
    return (1 - ctx.attr("norm_coefficient_post", 0.0)) * x, mean, square


def _momentum(ctx: Context, rate: Any, count: Any, x: Any, gradient: Any, velocity: Any) -> tuple[Any, ...]:
    alpha = ctx.attr("alpha")
    velocity = alpha * velocity + jnp.where(count > 0, ctx.attr("beta"), 1.0) * gradient
    moved = gradient + alpha * velocity if ctx.attr("mode") == "nesterov" else velocity
    return x - rate * moved, velocity


register("Adagrad", domain=_DOMAIN)(_stepwise(1, _adagrad))
register("Adam", domain=_DOMAIN)(_stepwise(2, _adam))
register("Momentum", domain=_DOMAIN)(_stepwise(1, _momentum))
