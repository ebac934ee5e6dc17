"""Shrinking activations: their gradient passes outside the dead zone."""

from __future__ import annotations

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def shrink_backward(dy: Tensor, x: Tensor, limit: float) -> Tensor:
    """0 for -limit ≤ x ≤ limit."""
    return torch.where((x >= -limit) & (x <= limit), torch.zeros_like(dy), dy)


DECOMPOSITIONS = {
    aten.hardshrink_backward.default: shrink_backward,
    aten.softshrink_backward.default: shrink_backward,
}
