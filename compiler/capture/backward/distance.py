"""Distances between all rows, and rows of an embedding kept within a norm: written out."""

from __future__ import annotations

import math

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def cdist(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    """[…, n, m]: the p-norm of every difference of rows."""
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 2:
        return difference.square().sum(-1).sqrt()
    if p == 1:
        return difference.sum(-1)
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    return difference.amax(-1) if math.isinf(p) else difference.pow(p).sum(-1).pow(1 / p)


def cdist_backward(dy: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    """d x; 0 where two rows are the same."""
    if p == 0:
        return torch.zeros_like(x)
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    far = distance.unsqueeze(-1)
    if p == 1:
        slope = difference.sign()
    elif math.isinf(p):
        slope = difference.sign() * (difference.abs() == far).to(x.dtype)
    else:
        size = difference.abs()
        power = difference if p == 2 else difference.sign() * size.pow(p - 1)
        scale = far if p == 2 else far.pow(p - 1)
        slope = torch.where(scale == 0, torch.zeros_like(power), power / torch.where(scale == 0, 1.0, scale))
    return (dy.unsqueeze(-1) * slope).sum(-2)


def embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows that `indices` name, scaled down to `max_norm`; the others as they are."""
    norms = torch.linalg.vector_norm(weight, norm_type, 1, keepdim=True)
    places = indices.reshape(-1)
    named = torch.zeros(weight.shape[0], dtype=torch.int64).scatter(0, places, torch.ones_like(places)) > 0
    scale = torch.where(named.unsqueeze(1) & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
    return weight * scale.to(weight.dtype)


DECOMPOSITIONS = {
    aten._cdist_forward.default: cdist,
    aten._cdist_backward.default: cdist_backward,
    aten.embedding_renorm.default: embedding_renorm,
}
