"""Results, inputs and registered values as the MLSDK hands them out."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from pfvm.errors import InputError, short


class TensorProxy(torch.Tensor):
    """A tensor of a compiled function: a result, an allocated input, a registered value, or a part of one.

    Every torch function takes it, and returns plain tensors; only indexing returns a proxy, of the same memory.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """A copy of the values, an ordinary tensor."""
        return plain(self).clone()

    def load_from(self, source: TensorLike, clone: bool = True) -> None:
        """Set the values. They are copied either way: the source may change afterwards.

        Raises InputError for another shape or dtype.
        """
        if not isinstance(source, torch.Tensor):
            raise InputError(f"load_from takes a tensor or a TensorProxy, not {short(source)}")
        if source.shape != self.shape or source.dtype != self.dtype:
            raise InputError(
                f"load_from: expected {self.dtype} {list(self.shape)}, got {source.dtype} {list(source.shape)}"
            )
        with torch.no_grad():
            plain(self).copy_(source)

    def __getitem__(self, index: Any) -> TensorProxy:
        return as_proxy(plain(self)[index])


TensorLike: TypeAlias = torch.Tensor | TensorProxy


def as_proxy(tensor: torch.Tensor) -> TensorProxy:
    """A proxy of the tensor's memory."""
    return tensor.detach().as_subclass(TensorProxy)


def plain(proxy: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary tensor."""
    return proxy.detach().as_subclass(torch.Tensor)
