"""Trace with shapes instead of numbers: reached tensors keep their Python identity while their storage becomes fake.

Closures, lists and dictionaries that hold a tensor go on holding it, so the function runs unchanged, but no kernel runs
and nothing of the user's is read or written. `torch.utils.swap_tensors` does the same and refuses tensors with weak
references (nn.RNN keeps some); those follow the Python object, which is right here, because all is swapped back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

SWAP_LOCK = threading.RLock()
"""Held from the swap until weights are read: another thread must not see a fake."""


@contextlib.contextmanager
def fake_swap(mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within the block each tensor is a FakeTensor of `mode` with its own shape, strides, dtype and requires_grad."""
    swapped: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for tensor in tensors:
            fake = _fake_like(mode, tensor)
            _swap(tensor, fake)
            swapped.append((tensor, fake))
        yield
    finally:
        for tensor, fake in reversed(swapped):
            _swap(tensor, fake)


def _fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    fake = FakeTensor(mode, meta, tensor.device)
    if tensor.is_leaf and tensor.requires_grad:
        fake.requires_grad_(True)
    if isinstance(tensor, torch.nn.Parameter):
        fake._is_param = True  # isinstance(fake, Parameter) looks at this
    return fake


def _swap(tensor: Any, fake: Any) -> None:
    hooks = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    tensor.__class__, fake.__class__ = fake.__class__, tensor.__class__
    tensor.__dict__, fake.__dict__ = fake.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, fake)
    # Hooks live in the implementation that was just exchanged.
    if hooks[0]:
        tensor._backward_hooks = hooks[0]
    if hooks[1]:
        tensor._post_accumulate_grad_hooks = hooks[1]
