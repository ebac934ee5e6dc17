"""The gradients of losses by comparison with the classes' numbers, which needs no indexing."""

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


def multi_margin_loss_backward(
    dy: Tensor, x: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Each class within the margin of the target's is pushed away, and the target's the other way."""
    rows, labels = torch.atleast_2d(x), target.reshape(-1, 1)
    classes = rows.shape[1]
    is_target = torch.arange(classes, dtype=target.dtype) == labels
    distance = margin - rows.gather(1, labels) + rows
    slope = torch.ones_like(distance) if p == 1 else 2 * distance
    slope = slope if weight is None else slope * weight[labels]
    push = torch.where((distance > 0) & ~is_target, slope / classes, torch.zeros((), dtype=x.dtype))
    gradient = torch.where(is_target, -push.sum(1, keepdim=True), push)
    return (gradient * _per_row(dy, rows.shape[0], reduction)).reshape(x.shape)


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """(loss, which classes are labels). torch's own decomposition counts what comes after the first -1."""
    is_target, counts, distance = _label_distances(x, target)
    active = (counts.unsqueeze(2) & ~is_target.unsqueeze(1)).to(x.dtype)
    loss = (distance.clamp(min=0) * active).sum([1, 2]) / distance.shape[2]
    loss = loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss.reshape(x.shape[:-1])
    return loss, is_target.to(x.dtype).reshape(target.shape)


def multilabel_margin_loss_backward(dy: Tensor, x: Tensor, target: Tensor, reduction: int, _: Tensor) -> Tensor:
    """As `multi_margin_loss_backward`, for each of a row's labels; those from the first -1 on do not count."""
    is_target, counts, distance = _label_distances(x, target)
    active = (distance > 0) & counts.unsqueeze(2) & ~is_target.unsqueeze(1)
    push = active.to(x.dtype) / distance.shape[2]
    gradient = push.sum(1).scatter_add(1, torch.atleast_2d(target).clamp(min=0), -push.sum(2))
    return (gradient * _per_row(dy, gradient.shape[0], reduction)).reshape(x.shape)


def _label_distances(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """([n, class] is a label, [n, label] counts, [n, label, class] 1 - x[label] + x[class])."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    counts = (labels < 0).to(torch.int64).cumsum(1) == 0
    chosen = labels.clamp(min=0)
    classes = torch.arange(rows.shape[1], dtype=target.dtype)
    is_target = ((chosen.unsqueeze(2) == classes) & counts.unsqueeze(2)).any(1)
    return is_target, counts, 1 - rows.gather(1, chosen).unsqueeze(2) + rows.unsqueeze(1)


def _per_row(dy: Tensor, rows: int, reduction: int) -> Tensor:
    """The gradient of each row's loss, as a column."""
    column = dy.reshape(-1, 1)
    return column / rows if reduction == 1 else column


DECOMPOSITIONS = {
    aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
    aten.multilabel_margin_loss_forward.default: multilabel_margin_loss,
    aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
}
