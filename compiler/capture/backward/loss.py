"""The gradient of the negative log likelihood by comparison with the classes' numbers, which needs no indexing."""

from __future__ import annotations

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def nll_loss_backward(
    dy: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Tensor:
    """-weight[target] · dy at each target's class, 0 elsewhere and where the target is ignored. Classes are dim 1."""
    axis = 0 if x.dim() < 2 else 1
    shape = [x.shape[axis] if d == axis else 1 for d in range(x.dim())]
    classes = torch.arange(x.shape[axis], dtype=target.dtype).reshape(shape)
    labels = target.unsqueeze(axis)
    chosen = (classes == labels) & (labels != ignore_index)
    if reduction == 1:
        dy = dy / total
    elif reduction == 0:
        dy = dy.unsqueeze(axis)
    share = -dy if weight is None else -dy * weight.reshape(shape)
    return torch.where(chosen, share, torch.zeros((), dtype=x.dtype))


DECOMPOSITIONS = {
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
}
