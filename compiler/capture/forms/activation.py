"""Activations that draw their slopes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """A slope between `lower` and `upper` for each negative number; the middle one outside training."""
    if training:
        with torch.no_grad():
            slope = torch.empty_like(x).uniform_(lower, upper)
        y = torch.where(x <= 0, x * slope, x)
    else:
        y = F.leaky_relu(x, (lower + upper) / 2)
    return x.copy_(y) if inplace else y


def rrelu_in_place(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Tensor:
    """As `rrelu`."""
    return rrelu(x, lower, upper, training, inplace=True)


FORMS: dict[Any, Any] = {F.rrelu: rrelu, torch.rrelu: rrelu, torch.rrelu_: rrelu_in_place}
