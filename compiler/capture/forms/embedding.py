"""Bags of embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """With a dense gradient: optimizers that take sparse ones (SGD, Adagrad) do the same with its zeros."""
    return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, False)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """[bags, features]: rows of a table, looked up and reduced. Padding is no member; an empty bag is zeros.

    Every bag is a row of a table [bags, all indices] of members: for indices in one row with offsets, no other shape
    is known.
    """
    rows = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, False)
    kept = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % len(weight)
    if input.dim() == 1:
        if offsets is None:
            raise ValueError("offsets has to be a 1D Tensor but got None")
        kept, rows = kept & _members(len(input), offsets, include_last_offset), rows.unsqueeze(0)
    if mode == "max":
        return _largest(rows, kept)
    share = kept.to(weight.dtype)
    if per_sample_weights is not None:
        share = share * per_sample_weights
    if mode == "mean":
        share = share / share.sum(1, keepdim=True).clamp(min=1)
    return share @ rows[0] if input.dim() == 1 else (share.unsqueeze(-1) * rows).sum(1)


def _members(count: int, offsets: Tensor, has_end: bool) -> Tensor:
    """[bags, count]: which indices are in which bag."""
    places = torch.arange(count, dtype=offsets.dtype)
    starts = offsets[:-1] if has_end else offsets
    ends = torch.cat([offsets[1:], offsets.new_full((0 if has_end else 1,), count)])
    return (places >= starts.unsqueeze(1)) & (places < ends.unsqueeze(1))


def _largest(rows: Tensor, kept: Tensor) -> Tensor:
    lowest = torch.finfo(rows.dtype).min
    values = torch.where(kept.unsqueeze(-1), rows, lowest).max(1).values
    return torch.where(kept.any(1, keepdim=True), values, 0.0)


FORMS: dict[Any, Any] = {F.embedding: embedding, F.embedding_bag: embedding_bag}
