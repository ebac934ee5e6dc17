"""What torch answers without telling the tracer: `tensor.data` as ops that it sees, and who asks for `tensor.grad`."""

from __future__ import annotations

from typing import Any

import torch
from pfvm.errors import CaptureError
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode


class TensorDataMode(TorchFunctionMode):
    """`x.data` becomes x.detach(), and `x.data = y` a copy into x. Notes real tensors that meet the function.

    They are weights that no path leads to; backward() gives them a gradient, which `put_back` takes away again.
    `asked` are ids of tensors whose gradient the function reads or sets, `required` of those that it says need one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[int] = set()
        self.required: set[int] = set()
        self._real: dict[int, tuple[torch.Tensor, Any]] = {}

    def put_back(self) -> None:
        """Give real tensors the gradient that they had."""
        for tensor, gradient in self._real.values():
            if tensor.grad is not gradient:
                tensor.grad = gradient

    def _note(self, args: Any) -> None:
        for value in args:
            if isinstance(value, (list, tuple)):
                self._note(value)
            elif isinstance(value, torch.nn.Parameter) and not isinstance(value, FakeTensor):
                self._real.setdefault(id(value), (value, value.grad))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._note(args)
        attribute = getattr(func, "__self__", None)
        if attribute is torch.Tensor.grad:
            self.asked.add(id(args[0]))
        if func is torch.Tensor.requires_grad_ or (attribute is torch.Tensor.requires_grad and len(args) == 2):
            self.required.add(id(args[0]))
        if attribute is not torch.Tensor.data:
            return func(*args, **(kwargs or {}))
        if func.__name__ == "__get__":
            return args[0].detach()
        target, value = args
        if target.shape != value.shape or target.dtype != value.dtype:
            raise CaptureError(
                f"x.data = y with another shape or dtype ({target.dtype} {list(target.shape)}, "
                f"{value.dtype} {list(value.shape)}) cannot be captured"
            )
        with torch.no_grad():
            target.detach().copy_(value)
        return None
