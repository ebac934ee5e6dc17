"""Running maxima and their like, by doubling: after k rounds an element knows 2**k elements before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def _before(x: Tensor, shift: int, fill: Any) -> Tensor:
    """Each element's neighbour `shift` places earlier in the last dimension."""
    start = torch.full([*x.shape[:-1], shift], fill, dtype=x.dtype)  # F.pad takes a float, which no int64 limit is
    return torch.cat([start, x[..., :-shift]], -1)


def _running(is_better: Callable[[Tensor, Tensor], Tensor], lowest: float) -> Any:
    def running(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """(values, where each was first reached last): the newer of two equal ones."""
        if x.dim() == 0:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        fill = lowest if x.is_floating_point() else _limit(x.dtype, lowest)
        values = x.movedim(dim, -1)
        places = torch.arange(values.shape[-1]).expand(values.shape)
        shift = 1
        while shift < values.shape[-1]:
            earlier, where = _before(values, shift, fill), _before(places, shift, 0)
            takes = is_better(earlier, values)
            values, places = torch.where(takes, earlier, values), torch.where(takes, where, places)
            shift *= 2
        return values.movedim(-1, dim), places.movedim(-1, dim)

    return running


def _limit(dtype: torch.dtype, lowest: float) -> int:
    if dtype is torch.bool:
        return int(lowest > 0)
    return torch.iinfo(dtype).min if lowest < 0 else torch.iinfo(dtype).max


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log of the running sum of exponentials."""
    values = x.movedim(dim, -1)
    shift = 1
    while shift < values.shape[-1]:
        values = torch.logaddexp(values, _before(values, shift, -torch.inf))
        shift *= 2
    return values.movedim(-1, dim)


DECOMPOSITIONS = {
    aten.cummax.default: _running(torch.gt, -torch.inf),
    aten.cummin.default: _running(torch.lt, torch.inf),
    aten.logcumsumexp.default: logcumsumexp,
}
