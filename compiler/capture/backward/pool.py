"""The gradients of pools: averages spread evenly, maxima go back to where they came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def _each(numbers: Sequence[int], rank: int) -> list[int]:
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def _avg_pool_backward(rank: int) -> Any:
    def backward(
        dy: Tensor,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        window, pads = _each(kernel, rank), _each(padding, rank)
        steps = _each(stride, rank) if stride else window
        for axis in range(rank):
            counts = _counts(x, dy, axis - rank, window[axis], steps[axis], pads[axis], count_include_pad)
            if divisor_override is not None:
                counts = [1.0] * len(counts)
            dy = _spread(dy, axis - rank, x.shape[axis - rank], window[axis], steps[axis], pads[axis], counts)
        return dy if divisor_override is None else dy / divisor_override

    return backward


def _counts(x: Tensor, dy: Tensor, axis: int, window: int, step: int, pad: int, count_include_pad: bool) -> list[float]:
    """How many elements each window divides by, along one dimension; windows of `ceil_mode` may reach past the pads."""
    size = x.shape[axis]
    starts = [i * step - pad for i in range(dy.shape[axis])]
    ends = [min(start + window, size + pad) for start in starts]
    if count_include_pad:
        return [float(end - start) for start, end in zip(starts, ends)]
    return [float(min(end, size) - max(start, 0)) for start, end in zip(starts, ends)]


def _spread(dy: Tensor, axis: int, size: int, window: int, step: int, pad: int, counts: Sequence[float]) -> Tensor:
    """One dimension of the gradient: each window gives every element that it covers the same share."""
    starts = [i * step - pad for i in range(dy.shape[axis])]
    return _shares(dy, axis, size, [(max(s, 0), min(s + window, size)) for s in starts], counts)


def _shares(dy: Tensor, axis: int, size: int, spans: Sequence[tuple[int, int]], counts: Sequence[float]) -> Tensor:
    """Element i of `dy` along `axis`, divided by counts[i], goes to the elements of spans[i]: a matrix product."""
    if len(spans) == 1 and spans[0] == (0, size):
        return (dy / counts[0]).expand([size if d == dy.dim() + axis else s for d, s in enumerate(dy.shape)])
    rows = [[0.0] * size for _ in spans]
    for row, (start, end), count in zip(rows, spans, counts):
        row[start:end] = [1.0 / count] * (end - start)
    return (dy.transpose(axis, -1) @ torch.tensor(rows, dtype=dy.dtype)).transpose(axis, -1)


def _adaptive_avg_pool_backward(rank: int) -> Any:
    def backward(dy: Tensor, x: Tensor) -> Tensor:
        for axis in range(-rank, 0):
            size, bins = x.shape[axis], dy.shape[axis]
            spans = [(i * size // bins, -(-(i + 1) * size // bins)) for i in range(bins)]
            dy = _shares(dy, axis, size, spans, [float(end - start) for start, end in spans])
        return dy

    return backward


def _max_pool_backward(rank: int) -> Any:
    def backward(dy: Tensor, x: Tensor, *arguments: Any) -> Tensor:
        """The indices are the last argument; they count within a plane."""
        indices = arguments[-1]
        lead, plane = list(x.shape[:-rank]), math.prod(x.shape[-rank:])
        zeros = dy.new_zeros([*lead, plane])
        result = zeros.scatter_add(-1, indices.reshape([*lead, -1]), dy.reshape([*lead, -1]))
        return result.reshape(list(x.shape))

    return backward


DECOMPOSITIONS = {
    aten.avg_pool2d_backward.default: _avg_pool_backward(2),
    aten.avg_pool3d_backward.default: _avg_pool_backward(3),
    aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool_backward(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_avg_pool_backward(3),
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward(2),
    aten.max_pool3d_with_indices_backward.default: _max_pool_backward(3),
    aten.adaptive_max_pool2d_backward.default: _max_pool_backward(2),
    aten.adaptive_max_pool3d_backward.default: _max_pool_backward(3),
}
