"""Writes by index in simpler ones: reductions without the old value, diagonals, masks."""

from __future__ import annotations

import math
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

_DIRECT = ("sum", "prod", "amax", "amin")
_WITHOUT = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}


def scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Any:
    """Where the old value does not count, it is exchanged for what changes nothing."""
    if reduce in _DIRECT and include_self:
        return NotImplemented
    start = x if include_self else x.scatter(dim, index, _neutral(x, reduce))
    if reduce != "mean":
        return start.scatter_reduce(dim, index, source, reduce)
    ones = torch.ones_like(x)
    counts = ones if include_self else ones.scatter(dim, index, 0)
    counts = counts.scatter_add(dim, index, torch.ones_like(source)).clamp(min=1)
    total = start.scatter_add(dim, index, source)
    return total / counts if x.is_floating_point() else torch.div(total, counts, rounding_mode="floor")


def _neutral(x: Tensor, reduce: str) -> Any:
    value = _WITHOUT[reduce]
    if x.is_floating_point() or math.isfinite(value):
        return value if x.is_floating_point() else int(value)
    limits = torch.iinfo(x.dtype)
    return limits.min if value < 0 else limits.max


def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """A scatter_reduce with the same index for a whole slice."""
    shape = [len(index) if d == dim % x.dim() else 1 for d in range(x.dim())]
    wide = index.to(torch.int64).reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, wide, source, reduce, include_self=include_self)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """By position in the flattened tensor."""
    return x.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate).reshape(x.shape)


def masked_scatter_backward(dy: Tensor, mask: Tensor, sizes: Any) -> Tensor:
    """The k-th element of the source gets the gradient of the mask's k-th hit."""
    hits = mask.expand(dy.shape).reshape(-1)
    position = (hits.to(torch.int64).cumsum(0) - 1).clamp(0, math.prod(sizes) - 1)
    share = torch.where(hits, dy.reshape(-1), torch.zeros((), dtype=dy.dtype))
    return dy.new_zeros([math.prod(sizes)]).scatter_add(0, position, share).reshape(list(sizes))


def diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Exchange a diagonal: its positions in the two dimensions are constants."""
    rows, columns = x.shape[dim1], x.shape[dim2]
    count = source.shape[-1]
    first = torch.arange(count) + max(-offset, 0)
    places = first * columns + torch.arange(count) + max(offset, 0)
    flat = x.movedim((dim1, dim2), (-2, -1)).flatten(-2)
    new = flat.scatter(-1, places.expand(source.shape), source)
    return new.unflatten(-1, (rows, columns)).movedim((-2, -1), (dim1, dim2))


def diagonal_backward(dy: Tensor, sizes: Any, offset: int, dim1: int, dim2: int) -> Tensor:
    """Zeros but for the diagonal."""
    return diagonal_scatter(dy.new_zeros(list(sizes)), dy, offset, dim1, dim2)


DECOMPOSITIONS = {
    aten.scatter_reduce.two: scatter_reduce,
    aten.index_reduce.default: index_reduce,
    aten.put.default: put,
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.diagonal_backward.default: diagonal_backward,
}
