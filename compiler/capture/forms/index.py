"""Indices that are 0-d tensors: PyTorch asks for their values, a graph gathers."""

from __future__ import annotations

from typing import Any

import torch
from pfvm.compiler.capture.position import position

aten = torch.ops.aten
Tensor = torch.Tensor


_MASKS = (torch.bool, torch.uint8)


def _is_position(part: Any) -> bool:
    if not isinstance(part, Tensor) or part.dim():
        return False
    return part.dtype not in _MASKS and not part.dtype.is_floating_point and not part.dtype.is_complex


def _rank(part: Any) -> int:
    """How many dimensions a part of an index takes."""
    if part is None or isinstance(part, bool) or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in _MASKS else 1


def select(input: Tensor, dim: int, index: Any) -> Tensor:
    """One of a dimension, as a view."""
    if isinstance(index, Tensor):
        index = position(index, input.shape[dim] - 1)
    return aten.select.int(input, dim, index)


def _selected(x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """x with the dimensions that 0-d tensors index taken out, as a view, and what is left of the index."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_position, parts)):
        return x, index
    rest, dim, left = [], 0, sum(0 if _is_position(p) else _rank(p) for p in parts)
    positions = sum(map(_is_position, parts))
    for part in parts:
        if _is_position(part):
            x = select(x, dim, part)
            positions -= 1
        else:
            dim += x.dim() - left - positions if part is Ellipsis else _rank(part)
            rest.append(part)
    return x, tuple(rest)


def get_item(x: Tensor, index: Any) -> Tensor:
    view, rest = _selected(x, index)
    return Tensor.__getitem__(view, rest)


def set_item(x: Tensor, index: Any, value: Any) -> None:
    view, rest = _selected(x, index)
    Tensor.__setitem__(view, rest, value)


FORMS: dict[Any, Any] = {
    Tensor.__getitem__: get_item,
    Tensor.__setitem__: set_item,
    Tensor.select: select,
    torch.select: select,
}
