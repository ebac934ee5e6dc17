"""Tensors whose newest values are on a device: they come to the host when somebody looks, and not before.

After a training step a parameter keeps its Python object, its memory and its place in modules and optimizers; only its
class changes, to one through which every use by torch goes. The first use copies the values into the tensor's own
memory and gives it its class back. A step whose tensors nobody looks at moves nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from pfvm.compiler.capture.dtypes import to_torch
from pfvm.compiler.capture.fake_swap import SWAP_LOCK

# Answered without values. Everything else, gradients' flags included, brings them.
_SHAPE_ONLY = frozenset(
    {
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim")),
        *(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "grad", "grad_fn")),
        *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride, torch.Tensor.is_contiguous),
        *(torch.Tensor.__len__, torch.Tensor.is_floating_point, torch.Tensor.element_size, torch.Tensor.ndimension),
    }
)
_KEY = "_pfvm_on_device"


class OnDevice:
    """The newest values of one tensor: `array` is the device's, `fetch` brings it to the host."""

    __slots__ = ("array", "device", "fetch", "original")

    def __init__(self, array: Any, device: str, fetch: Callable[[Any], Any], original: type) -> None:
        self.array = array
        self.device = device
        self.fetch = fetch
        self.original = original


class _Deferred:
    """Mixed into a tensor's class while its values are on a device."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _SHAPE_ONLY:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, _Deferred):
                    settle(leaf)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    # Python code of torch.nn.Parameter that asks for the class before it asks for the values:

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        settle(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        settle(self)
        return self.__reduce_ex__(protocol)


class _DeferredTensor(_Deferred, torch.Tensor):
    pass


class _DeferredParameter(_Deferred, torch.nn.Parameter):
    pass


_CLASSES: dict[type, type] = {torch.Tensor: _DeferredTensor, torch.nn.Parameter: _DeferredParameter}


def on_device(tensor: torch.Tensor) -> OnDevice | None:
    """Where the tensor's newest values are; None when it holds them itself."""
    return tensor.__dict__.get(_KEY)


def can_defer(tensor: torch.Tensor) -> bool:
    """Whether nothing but this Python object leads to the tensor's memory: a view or alias would show old values.

    numpy() and views hold the memory, DLPack (np.from_dlpack) the tensor below the Python object.
    """
    has_one_holder = _holders(tensor) <= _SINGLE_HOLDER and tensor._use_count() == 1  # type: ignore[attr-defined]
    return type(tensor) in _CLASSES and has_one_holder and tensor._base is None


def _holders(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_SINGLE_HOLDER = max(_holders(t) for t in [torch.zeros(2)] for _ in range(2))


def defer(tensor: torch.Tensor, array: Any, device: str, fetch: Callable[[Any], Any]) -> OnDevice:
    """From now on the tensor's values are those of `array`. Only where `can_defer`."""
    with SWAP_LOCK:
        values = OnDevice(array, device, fetch, type(tensor))
        tensor.__dict__[_KEY] = values
        tensor.__class__ = _CLASSES[values.original]
        return values


def settle(tensor: Any) -> None:
    """Bring the newest values into the tensor's own memory; it is an ordinary tensor again."""
    with SWAP_LOCK:
        values = tensor.__dict__.pop(_KEY, None)
        if values is None:
            return
        tensor.__class__ = values.original
        store(tensor, values.fetch(values.array))


def store(tensor: torch.Tensor, array: Any) -> None:
    """Copy host values into a tensor's memory, as an in-place op that autograd counts."""
    with torch.no_grad():
        tensor.copy_(to_torch(array))
