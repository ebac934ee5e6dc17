"""Counting and searching by comparison, and products of groups of rows."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def histc(x: Tensor, bins: int = 100, low: Any = 0, high: Any = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of [low, high]; of the data's own range where they are 0."""
    flat = x.reshape(-1)
    if low == high == 0:
        low, high = flat.amin(), flat.amax()
    place = torch.floor((flat - low) * bins / (high - low)).clamp(max=bins - 1)
    inside = (flat >= low) & (flat <= high)
    return ((place.unsqueeze(1) == torch.arange(bins, dtype=x.dtype)) & inside.unsqueeze(1)).to(x.dtype).sum(0)


def searchsorted(
    edges: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many edges each value has passed."""
    edges = edges if sorter is None else edges.gather(-1, sorter)
    rows = edges if edges.dim() == 1 else edges.unsqueeze(-2)
    values = x.unsqueeze(-1)
    passed = rows <= values if right or side == "right" else rows < values
    return passed.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Which row each of `output_size` results comes from."""
    if output_size is None:
        return NotImplemented
    ends = repeats.cumsum(0)
    return (torch.arange(output_size, dtype=ends.dtype).unsqueeze(1) >= ends).to(repeats.dtype).sum(1)


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Products of groups that `offs` ends: rows of `a`, columns of `b`, or the dimension between them.

    Which rows are in a group is data, so every group multiplies all rows, those of other groups as zeros.
    """
    if offs is None:
        return torch.bmm(a, b)
    starts = torch.cat([offs.new_zeros([1]), offs[:-1]])

    def members(count: int) -> Tensor:
        places = torch.arange(count, dtype=offs.dtype)
        return ((places >= starts.unsqueeze(1)) & (places < offs.unsqueeze(1))).to(a.dtype)

    groups = offs.shape[0]
    if a.dim() == 2 and b.dim() == 3:
        masks = members(a.shape[0]).unsqueeze(2)
        return torch.stack([(a * masks[g]) @ b[g] for g in range(groups)]).sum(0)
    if a.dim() == 3 and b.dim() == 2:
        masks = members(b.shape[1]).unsqueeze(1)
        return torch.stack([a[g] @ (b * masks[g]) for g in range(groups)]).sum(0)
    masks = members(a.shape[1]).unsqueeze(1)
    return torch.stack([(a * masks[g]) @ b for g in range(groups)])


DECOMPOSITIONS = {
    aten.histc.default: histc,
    aten.searchsorted.Tensor: searchsorted,
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten._grouped_mm.default: grouped_mm,
}
