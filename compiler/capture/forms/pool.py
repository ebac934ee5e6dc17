"""Fractional max pools: windows whose places are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def _each(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value] * rank


def _fractional(rank: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def pool(
        x: Tensor,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(maxima, where in its plane each was), as Graham's Fractional Max-Pooling (2014) draws the windows."""
        sizes = list(x.shape[-rank:])
        if output_size is None and output_ratio is None:
            raise ValueError("fractional max pooling needs an output_size or an output_ratio")
        if output_size is None:
            output_size = [int(n * r) for n, r in zip(sizes, _each(output_ratio, rank))]
        windows, outputs = _each(kernel_size, rank), _each(output_size, rank)
        lead = x.shape[:-rank]
        if _random_samples is None:
            _random_samples = torch.rand(1 if len(lead) == 1 else lead[0], lead[-1], rank, dtype=x.dtype)
        samples = _random_samples[0] if len(lead) == 1 else _random_samples
        places = torch.zeros([*lead, *[1] * (2 * rank)], dtype=torch.int64)
        for axis in range(rank):
            # Volumes take their samples in the order of the axes, images the other way round.
            sample = samples[..., axis] if rank == 3 else samples[..., rank - 1 - axis]
            starts = _starts(sample, sizes[axis], outputs[axis], windows[axis])
            at = starts.unsqueeze(-1) + torch.arange(windows[axis])
            shape = [*lead, *[1] * axis, outputs[axis], *[1] * (rank - 1), windows[axis], *[1] * (rank - 1 - axis)]
            places = places * sizes[axis] + at.reshape(shape)
        places = places.flatten(len(lead) + rank)
        values = x.flatten(-rank).gather(-1, places.flatten(len(lead))).reshape(places.shape)
        best = values.max(-1)
        return best.values, places.gather(-1, best.indices.unsqueeze(-1)).squeeze(-1)

    return pool


def _starts(sample: Tensor, size: int, count: int, window: int) -> Tensor:
    """[..., count]: where each window of one dimension begins; the last one ends with the dimension."""
    if count == 1:
        return torch.full([*sample.shape, 1], size - window, dtype=torch.int64)
    alpha = (size - window) / (count - 1)
    steps = torch.arange(count - 1, dtype=sample.dtype)
    drawn = sample.unsqueeze(-1)
    starts = ((steps + drawn) * alpha).to(torch.int64) - (drawn * alpha).to(torch.int64)
    return torch.cat([starts, torch.full([*sample.shape, 1], size - window, dtype=torch.int64)], -1)


def _maxima(pool: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    def form(x: Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> Any:
        wants_indices = kwargs.get("return_indices", args[2] if len(args) > 2 else False)
        result = pool(x, kernel_size, *args, **kwargs)
        return result if wants_indices else result[0]

    return form


FORMS: dict[Any, Callable[..., Any]] = {}
for _rank, _function in ((2, F.fractional_max_pool2d), (3, F.fractional_max_pool3d)):
    FORMS[_function] = _maxima(_fractional(_rank))
    FORMS[getattr(F, f"fractional_max_pool{_rank}d_with_indices")] = _fractional(_rank)
