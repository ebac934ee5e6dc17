"""Tensors made of what other tensors hold: PyTorch asks for their values."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._pytree as pytree

Tensor = torch.Tensor


def _like_number(fill: Tensor) -> torch.dtype:
    """The dtype that torch.full takes from a Python number."""
    if fill.dtype.is_floating_point:
        return torch.get_default_dtype()
    if fill.dtype.is_complex:
        return torch.get_default_dtype().to_complex()
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


def tensor(data: Any, *, dtype: torch.dtype | None = None, requires_grad: bool = False, **options: Any) -> Tensor:
    """A list of tensors of one element, and numbers, is stacked, without their gradients."""
    parts = pytree.tree_leaves(data)
    if not isinstance(data, (list, tuple)) or not any(isinstance(part, Tensor) for part in parts):
        return torch.tensor(data, dtype=dtype, requires_grad=requires_grad, **options)
    types = [part.dtype if isinstance(part, Tensor) else torch.tensor(part).dtype for part in parts]
    dtype = dtype or functools.reduce(torch.promote_types, types)
    return _stacked(data, dtype).requires_grad_(requires_grad)


def _stacked(data: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(data, Tensor):
        return data.detach().reshape(()).to(dtype)
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(part, dtype) for part in data])
    return torch.tensor(data, dtype=dtype)


FORMS: dict[Any, Any] = {torch.tensor: tensor, torch.full: full, torch.full_like: full_like, Tensor.new_full: new_full}
