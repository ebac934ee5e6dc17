"""The value of a 0-d tensor as an index: a symbolic number that nothing else may be asked of."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

aten = torch.ops.aten


def position(index: torch.Tensor, last: int | torch.SymInt) -> Any:
    """The number in a 0-d tensor of integers. Tracing takes it for one from 0 to `last`, so that views can be taken."""
    number = aten._local_scalar_dense(index)
    if isinstance(number, int):  # a constant of the function
        return number
    bound = {"max": last} if isinstance(last, int) else {}
    aten.sym_constrain_range(number, min=0, **bound)  # stays in the graph, for functionalization to find
    return number


def in_position(frame: FrameType | None) -> bool:
    """Whether it is `position` that reads a number."""
    while frame is not None:
        if frame.f_code is position.__code__:
            return True
        frame = frame.f_back
    return False
