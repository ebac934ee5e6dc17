"""How much of a difference rounding alone can make: what the first model does when its inputs move a little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pfvm.errors import PfvmError

from .compare import Tolerance, difference, scaled_error

CHANGE = 1e-6  # of each number; of 1 in an input that is all zeros
_FACTOR = 10


def noise_note(
    name: str,
    reference: Any,
    other: Any,
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    feeds: Mapping[str, Any],
    tolerance: Tolerance,
) -> str | None:
    """A remark where the difference is within ten times of what the first model shows by itself; None otherwise.

    Such a model may be ill-conditioned, or the difference a small fault: the caller decides what follows from it.
    """
    if not _has_form(reference, other):
        return None
    try:
        again = run(_nudged(feeds))[name]
    except PfvmError:
        return None
    if not _has_form(reference, again):
        return None
    moved, apart = scaled_error(reference, again), scaled_error(reference, other)
    if apart > 0:
        by = f"by {moved:.1e} of its scale" if moved > 0 and apart <= _FACTOR * moved else None
    else:  # integers, bools, strings
        by = "too" if difference(name, reference, again, tolerance) is not None else None
    if by is None:
        return None
    how = f", this difference is {apart:.1e} of it" if apart > 0 else ""
    return (
        f"rounding may explain it: when the float inputs change by {CHANGE:g}, {name!r} of the first model alone "
        f"changes {by}{how}"
    )


def _has_form(reference: Any, other: Any) -> bool:
    """Whether a result has the structure, types and shapes of another: only then is there a distance."""
    if isinstance(reference, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(reference) == len(other) and all(map(_has_form, reference, other))
    if any(value is None or isinstance(value, (list, tuple, dict)) for value in (reference, other)):
        return False
    a, b = np.asarray(reference), np.asarray(other)
    return a.shape == b.shape and a.dtype == b.dtype


def _nudged(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Every float moved up or down by CHANGE of itself; seeded."""
    signs = np.random.default_rng(0)

    def nudge(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [nudge(v) for v in value]
        array = np.asarray(value)
        if array.dtype not in (np.float32, np.float64) or not array.size:
            return value
        size = np.abs(array) if array.any() else np.ones_like(array)
        return (array + CHANGE * size * signs.choice([-1.0, 1.0], array.shape)).astype(array.dtype)

    return {name: nudge(value) for name, value in feeds.items()}
