"""Batch norm in training mode writes its running statistics, which its schema does not say; weight norm's gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp.decompositions import native_batch_norm_helper

aten = torch.ops.aten
Tensor = torch.Tensor


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """(y, mean of the batch, 1 / deviation of the batch); `mean` and `var` are updated."""
    if not training or mean is None or var is None:
        return NotImplemented
    y, batch_mean, batch_invstd, new_mean, new_var = native_batch_norm_helper(
        x, weight, bias, mean, var, training, momentum, eps, True
    )
    assert new_mean is not None and new_var is not None
    mean.copy_(new_mean)
    var.copy_(new_var)
    return y, batch_mean, batch_invstd


def weight_norm_backward(dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(d v, d g) of w = g · v / |v|, the norm over all dimensions but `dim`."""
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    norms = norms.reshape(g.shape)
    along = (dw * v).sum(others, keepdim=True)
    return g / norms * (dw - v * (along / (norms * norms))), along / norms


DECOMPOSITIONS = {
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.default: native_batch_norm,
}
