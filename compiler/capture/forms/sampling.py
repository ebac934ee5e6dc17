"""Sampling on a grid by indexing, which has a gradient; without one GridSample is an operator of ONNX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """input [n, c, *sizes], grid [n, *places, dims] from -1 to 1 → [n, c, *places]."""
    align = bool(align_corners)
    if not (torch.is_grad_enabled() and (input.requires_grad or grid.requires_grad)):
        return F.grid_sample(input, grid, mode, padding_mode, align)
    sizes = list(input.shape[2:])
    places = [_unnormalized(grid[..., len(sizes) - 1 - axis], size, align) for axis, size in enumerate(sizes)]
    if mode == "bicubic":
        return _summed(input, [_cubic(p) for p in places], sizes, padding_mode, align)
    places = [_inside(p, size, padding_mode, align) for p, size in zip(places, sizes)]
    if mode == "nearest":
        return _summed(input, [[(torch.round(p), torch.ones_like(p))] for p in places], sizes, "zeros", align)
    return _summed(input, [_linear(p) for p in places], sizes, "zeros", align)


def _unnormalized(x: Tensor, size: int, align: bool) -> Tensor:
    return (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2


def _inside(x: Tensor, size: int, padding: str, align: bool) -> Tensor:
    """Coordinates that point outside, put on the border or mirrored."""
    if padding == "reflection":
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        distance = (x - low).abs()
        turns = torch.floor(distance / span).detach()
        rest = distance - turns * span
        x = torch.where(torch.remainder(turns, 2) == 0, rest + low, span - rest + low)
    return x if padding == "zeros" else x.clamp(0, size - 1)


_Taps = list[tuple[Tensor, Tensor]]  # (whole coordinate, weight)


def _linear(x: Tensor) -> _Taps:
    first = torch.floor(x).detach()
    return [(first, first + 1 - x), (first + 1, x - first)]


def _cubic(x: Tensor, a: float = -0.75) -> _Taps:
    """Four neighbours by Keys' cubic convolution."""
    first = torch.floor(x).detach()
    t = x - first

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [(first - 1, far(t + 1)), (first, near(t)), (first + 1, near(1 - t)), (first + 2, far(2 - t))]


def _summed(image: Tensor, taps: Sequence[_Taps], sizes: Sequence[int], padding: str, align: bool) -> Tensor:
    """The weighted sum of the neighbours, one from each dimension; those outside count zero."""
    flat = image.flatten(2)
    total: Any = 0.0
    for chosen in itertools.product(*taps):
        place: Any = torch.zeros_like(chosen[0][0], dtype=torch.int64)
        weight: Any = torch.ones_like(chosen[0][0])
        for (at, share), size in zip(chosen, sizes):
            at = _inside(at, size, padding, align)
            weight = weight * share * ((at >= 0) & (at <= size - 1)).to(share.dtype)
            place = place * size + at.clamp(0, size - 1).to(torch.int64)
        index = place.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
        values = flat.gather(2, index).reshape([*flat.shape[:2], *place.shape[1:]])
        total = total + values * weight.unsqueeze(1)
    return total


FORMS: dict[Any, Any] = {F.grid_sample: grid_sample}
