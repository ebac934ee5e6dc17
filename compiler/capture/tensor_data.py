"""`tensor.data`, which torch answers without telling the tracer, as ops that the tracer sees."""

from __future__ import annotations

from typing import Any

import torch
from pfvm.errors import CaptureError
from torch.overrides import TorchFunctionMode


class TensorDataMode(TorchFunctionMode):
    """`x.data` becomes x.detach(), and `x.data = y` a copy into x."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__self__", None) is not torch.Tensor.data:
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
