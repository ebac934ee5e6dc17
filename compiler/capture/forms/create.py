"""Tensors filled with what a 0-d tensor holds: PyTorch asks for its value."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def _like_number(fill: Tensor) -> torch.dtype:
    """The dtype that torch.full takes from a Python number."""
    if fill.dtype.is_floating_point:
        return torch.get_default_dtype()
    return torch.bool if fill.dtype is torch.bool else torch.int64


def full(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """A new tensor; no gradient leads to a fill value."""
    if not isinstance(fill_value, Tensor):
        return torch.full(size, fill_value, dtype=dtype, **options)
    return torch.empty(size, dtype=dtype or _like_number(fill_value), **options).copy_(fill_value.detach())


def full_like(input: Tensor, fill_value: Any, **options: Any) -> Tensor:
    if not isinstance(fill_value, Tensor):
        return torch.full_like(input, fill_value, **options)
    return torch.empty_like(input, **options).copy_(fill_value.detach())


def new_full(input: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    if not isinstance(fill_value, Tensor):
        return input.new_full(size, fill_value, **options)
    return input.new_empty(size, **options).copy_(fill_value.detach())


FORMS: dict[Any, Any] = {torch.full: full, torch.full_like: full_like, Tensor.new_full: new_full}
