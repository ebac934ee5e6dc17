"""Resizing and replicated borders are linear, a dimension at a time: the gradient is a product with each transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten
Tensor = torch.Tensor

# A resize of one dimension: (rows [1, n, size], wanted size, align_corners, scale) → [1, n, wanted].
Line = Callable[[Tensor, int, bool, "float | None"], Tensor]


def _nearest(op: Any) -> Line:
    return lambda rows, size, align, scale: op(rows, [size], scale)


def _linear(rows: Tensor, size: int, align: bool, scale: float | None) -> Tensor:
    return aten.upsample_linear1d.default(rows, [size], align, scale)


def _cubic(rows: Tensor, size: int, align: bool, scale: float | None) -> Tensor:
    return aten.upsample_bicubic2d.default(rows.unsqueeze(-1), [size, 1], align, scale, None).squeeze(-1)


def _resize_backward(line: Line, has_align: bool) -> Any:
    def backward(dy: Tensor, output_size: Sequence[int], input_size: Sequence[int], *settings: Any) -> Tensor:
        """`settings` are align_corners (where the mode has it) and the scales, one a dimension."""
        align = bool(settings[0]) if has_align else False
        scales = [*settings[has_align:], *[None] * len(output_size)]
        for i, (size, scale) in enumerate(zip(input_size[2:], scales)):
            axis = i - len(output_size)
            with _disable_current_modes():
                matrix = line(torch.eye(size, dtype=torch.float64).unsqueeze(0), dy.shape[axis], align, scale)[0]
                rows = matrix.t().tolist()
            dy = _product(dy, axis, rows)
        return dy

    return backward


def _product(dy: Tensor, axis: int, rows: list[list[float]]) -> Tensor:
    """`dy` with the dimension `axis` taken through a constant matrix [now, then]."""
    constant = torch.tensor(rows, dtype=dy.dtype)
    return (dy.transpose(axis, -1) @ constant).transpose(axis, -1)


def _replication_backward(rank: int) -> Any:
    def backward(dy: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        """`padding` is (before, after) of the last dimension, then of the one before it, …"""
        for i in range(rank):
            axis, size = -1 - i, x.shape[-1 - i]
            with _disable_current_modes():
                source = (torch.arange(dy.shape[axis]) - padding[2 * i]).clamp(0, size - 1)
                rows = torch.nn.functional.one_hot(source, size).tolist()
            dy = _product(dy, axis, rows)
        return dy

    return backward


_MODES: dict[str, tuple[Line, bool]] = {
    **{f"upsample_nearest{n}d": (_nearest(aten.upsample_nearest1d.default), False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": (_nearest(aten._upsample_nearest_exact1d.default), False) for n in (1, 2, 3)},
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), (_linear, True)),
    "upsample_bicubic2d": (_cubic, True),
}
DECOMPOSITIONS = {
    **{getattr(aten, f"{mode}_backward").default: _resize_backward(*how) for mode, how in _MODES.items()},
    **{getattr(aten, f"replication_pad{n}d_backward").default: _replication_backward(n) for n in (1, 2, 3)},
}
