"""Names of tensors, by which a Context tells them apart: "model@linear1@weight", "optimizer@model@linear1@weight"."""

from __future__ import annotations

import weakref

import torch
from pfvm.errors import InputError, short
from torch.utils.weak import WeakIdKeyDictionary

SEPARATOR = "@"

_names = WeakIdKeyDictionary()  # tensor → name
_prefixes: weakref.WeakKeyDictionary[torch.optim.Optimizer, str] = weakref.WeakKeyDictionary()


def set_tensor_name(tensor: torch.Tensor, name: str) -> None:
    """Name a tensor; a second name replaces the first. Raises InputError for what is no tensor or no name."""
    if not isinstance(tensor, torch.Tensor) or not isinstance(name, str) or not name:
        raise InputError(f"set_tensor_name takes a tensor and a name, not {short(tensor)} and {short(name)}")
    _names[tensor] = name


def get_tensor_name(tensor: torch.Tensor) -> str | None:
    """The tensor's name, None where it has none."""
    name: str | None = _names.get(tensor)
    return name


def set_tensor_name_in_module(module: torch.nn.Module, prefix: str) -> None:
    """Name the module's parameters and buffers: `prefix`, then the path of each.

    Two modules of one Context need two prefixes.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"set_tensor_name_in_module takes an nn.Module, not {short(module)}")
    for path, tensor in (*module.named_parameters(), *module.named_buffers()):
        set_tensor_name(tensor, SEPARATOR.join((prefix, *path.split("."))))


def set_buffer_name_in_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> None:
    """Name the optimizer; what its steps create later is named after it too."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"set_buffer_name_in_optimizer takes an optimizer, not {short(optimizer)}")
    _prefixes[optimizer] = prefix


def get_optimizer_name(optimizer: torch.optim.Optimizer) -> str | None:
    """What `set_buffer_name_in_optimizer` was told."""
    return _prefixes.get(optimizer)
