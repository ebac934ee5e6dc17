"""ATen ops without a rule of ours become simpler ATen ops where torch itself says how."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table

from . import backward, foreach
from .aten import TABLE


def _fits(op: Any) -> bool:
    """In-place forms are left to functionalization, random ops are refused, ops with a rule stay as they are."""
    return (
        isinstance(op, torch._ops.OpOverload)
        and op not in TABLE
        and not op._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in op.tags
    )


DECOMPOSITIONS: dict[Any, Any] = {
    **{op: function for op, function in decomposition_table.items() if _fits(op)},
    **foreach.DECOMPOSITIONS,
    **backward.DECOMPOSITIONS,
}
