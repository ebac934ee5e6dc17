"""Batch normalization whose momentum is a tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`momentum` may be a tensor: 1 / the number of batches, which BatchNorm(momentum=None) averages by."""
    if not isinstance(momentum, Tensor) or running_mean is None or running_var is None:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    mean, var = torch.zeros_like(running_mean), torch.ones_like(running_var)
    y = F.batch_norm(x, mean, var, weight, bias, training, 1.0, eps)
    for running, seen in ((running_mean, mean), (running_var, var)):
        running.copy_(momentum * seen + (1 - momentum) * running)
    return y


FORMS: dict[Any, Any] = {F.batch_norm: batch_norm}
