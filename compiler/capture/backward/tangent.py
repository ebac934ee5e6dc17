"""What forward mode (torch.func.jvp, jacfwd, hessian) makes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def no_tangent(size: Sequence[int], **options: Any) -> torch.Tensor:
    """The tangent of what does not depend on the input: zeros with memory, on which operators are the ordinary ones."""
    return torch.zeros(size, **options)


DECOMPOSITIONS: dict[Any, Any] = {aten._efficientzerotensor.default: no_tangent}
