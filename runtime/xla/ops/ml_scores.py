"""What ai.onnx.ml's models do with their scores (rows of numbers, one for each class or target)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from pfvm.runtime.xla.context import Context

# The standard names these by text, TreeEnsemble by number.
NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def post_transform(ctx: Context, scores: Any) -> Any:
    """The node's post_transform; a single score only knows PROBIT, as on ONNX Runtime."""
    kind = ctx.attr("post_transform", None) or "NONE"
    name = NAMES[kind] if isinstance(kind, int) else kind
    if name == "PROBIT":
        return _probit(scores)
    if name == "NONE" or scores.shape[-1] == 1:
        return scores
    return _TRANSFORMS[name](scores)


def _softmax_zero(scores: Any) -> Any:
    """A softmax in which a score of zero stays zero."""
    top = jnp.max(scores, -1, keepdims=True)
    shares = jnp.where(jnp.abs(scores) > 1e-7, jnp.exp(scores - top), scores * jnp.exp(-top))
    total = jnp.sum(shares, -1, keepdims=True)
    return jnp.where(total == 0, 0.5, shares / jnp.where(total == 0, 1, total))


def _probit(scores: Any) -> Any:
    """√2 · erf⁻¹(2 v - 1) by the approximation that ONNX Runtime uses."""
    x = 2 * scores - 1
    log = jnp.log((1 - x) * (1 + x))
    half = 2 / (math.pi * 0.147) + 0.5 * log
    return math.sqrt(2) * jnp.sign(x) * jnp.sqrt(jnp.sqrt(half * half - log / 0.147) - half)


_TRANSFORMS = {"SOFTMAX": jax.nn.softmax, "LOGISTIC": jax.nn.sigmoid, "SOFTMAX_ZERO": _softmax_zero}
