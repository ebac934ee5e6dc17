"""What a Context was told about: tensors and optimizers by name."""

from __future__ import annotations

import torch
from pfvm.errors import InputError, OptionError, short

from .tensor_names import (
    get_optimizer_name,
    get_tensor_name,
    set_buffer_name_in_optimizer,
    set_tensor_name_in_module,
)


class Registry:
    """Tensors and optimizers by name. A name stands for one tensor."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}  # of the tensors above, which stay alive
        self.optimizers: dict[str, torch.optim.Optimizer] = {}

    def register(self, name: str, item: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Name and register all parameters and buffers of a module, or an optimizer.

        Raises InputError for anything else, OptionError where another tensor of this context has the name.
        """
        if isinstance(item, torch.nn.Module):
            set_tensor_name_in_module(item, name)
            for tensor in (*item.parameters(), *item.buffers()):
                self.add_tensor(tensor)
        elif isinstance(item, torch.optim.Optimizer):
            set_buffer_name_in_optimizer(item, name)
            self.add_optimizer(item)
        else:
            raise InputError(f"register takes an nn.Module or an optimizer, not {short(item)}")

    def add_tensor(self, tensor: torch.Tensor) -> None:
        """Register a named tensor."""
        name = get_tensor_name(tensor) if isinstance(tensor, torch.Tensor) else None
        if name is None:
            raise InputError(
                f"{_what(tensor)} has no name; call set_tensor_name_in_module(model, prefix) or set_tensor_name before"
            )
        if self.tensors.setdefault(name, tensor) is not tensor:
            raise OptionError(
                f"another tensor of this context is named {name!r}; give each model a prefix of its own in "
                "set_tensor_name_in_module"
            )
        self._names.setdefault(id(tensor), name)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Register a named optimizer."""
        name = get_optimizer_name(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else None
        if name is None:
            raise InputError(f"{_what(optimizer)} has no name; call set_buffer_name_in_optimizer(optimizer, prefix)")
        if self.optimizers.setdefault(name, optimizer) is not optimizer:
            raise OptionError(f"another optimizer of this context is named {name!r}; give each a prefix of its own")

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name under which this very tensor was registered first."""
        return self._names.get(id(tensor))


def _what(item: object) -> str:
    if isinstance(item, torch.Tensor):
        return f"a {str(item.dtype).removeprefix('torch.')}{list(item.shape)} tensor"
    return short(item)
