"""Reductions over axes: what is added up or compared, and what becomes of the total."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arithmetic import Arithmetic
from .calls import Call
from .elementwise import quotient

Array = np.ndarray

EXTREMES = {"ReduceMax": np.max, "ReduceMin": np.min, "GlobalMaxPool": np.max}
PICKS = {"ArgMax": np.argmax, "ArgMin": np.argmin}
MEANS = ("ReduceMean", "GlobalAveragePool")
SUMS = ("ReduceSum", *MEANS, "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum")
_SPATIAL = ("GlobalMaxPool", "GlobalAveragePool")
REDUCTIONS = (*EXTREMES, *PICKS, *SUMS, "ReduceProd")


def reduced_axes(call: Call, rank: int, inputs: Sequence[Array | None]) -> tuple[int, ...]:
    """The axes that a reduction goes over, from its attribute or its second input."""
    if call.op in PICKS:
        return (call.attribute("axis", 0) % rank,)
    if call.op in _SPATIAL:
        return tuple(range(2, rank))
    given = inputs[1] if len(inputs) > 1 and inputs[1] is not None else call.attribute("axes")
    axes = () if given is None else tuple(int(axis) % rank for axis in np.ravel(given))
    if axes or (call.attribute("noop_with_empty_axes", 0) and call.version >= 13):
        return axes
    return tuple(range(rank))


def reduce(call: Call, arithmetic: Arithmetic, inputs: Sequence[Array | None]) -> Array:
    """One reduction, with or without the reduced axes as `keepdims` says."""
    x = inputs[0]
    assert x is not None
    axes = reduced_axes(call, x.ndim, inputs)
    kept = _reduced(call, arithmetic, x, axes)
    if call.attribute("keepdims", 1):
        return kept
    return kept.reshape([size for axis, size in enumerate(kept.shape) if axis not in axes])


def _reduced(call: Call, arithmetic: Arithmetic, x: Array, axes: tuple[int, ...]) -> Array:
    if call.op in PICKS:
        pick = PICKS[call.op]
        if not call.attribute("select_last_index", 0):
            return pick(x, axis=axes[0], keepdims=True)
        return x.shape[axes[0]] - 1 - pick(np.flip(x, axes[0]), axis=axes[0], keepdims=True)
    if not axes:
        return _finished(call, _term(call, x), 1)
    if call.op in EXTREMES:
        return EXTREMES[call.op](x, axis=axes, keepdims=True)
    if call.op == "ReduceProd":
        return np.prod(x, axis=axes, keepdims=True)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    return _finished(call, arithmetic.sum(_term(call, x), axes), count)


def _term(call: Call, x: Array) -> Array:
    if call.op in ("ReduceSumSquare", "ReduceL2"):
        return x * x
    return np.abs(x) if call.op == "ReduceL1" else x


def _finished(call: Call, total: Array, count: int) -> Array:
    if call.op in MEANS:
        return quotient(total, np.array(count, total.dtype)) if total.dtype.kind in "iu" else total / count
    if call.op == "ReduceL2":
        return np.sqrt(total)
    return np.log(total) if call.op == "ReduceLogSum" else total
