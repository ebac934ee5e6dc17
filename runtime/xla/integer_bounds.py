"""Which integers a small program finds nothing wrong with, whatever they are: most batches are judged by two of them.

Labels between 0 and the number of classes need no look at each: their smallest and their largest say it. How large they
may be is found by running the program's steps once on bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# Differences of what is smaller fit every type that has 32 bits.
_MOST = 1 << 30
# The result's bounds are the results of its operands' bounds.
_MONOTONE = frozenset(
    {
        *("reshape", "squeeze", "broadcast_in_dim", "slice", "stack", "concatenate"),
        *("max", "min", "reduce_min", "reduce_max", "and", "or"),
    }
)


class Step(NamedTuple):
    """`function` of the values in the slots `operands`; its result goes to the slot `out`."""

    name: str
    function: Callable[..., Any]
    operands: tuple[int, ...]
    out: int


class Bounds(NamedTuple):
    """The smallest and the largest of what each element can be."""

    low: Any
    high: Any


class _Unknown(Exception):
    """The bounds do not follow."""


def sizes_without_finding(
    steps: Sequence[Step], values: Sequence[Any], result: int, arguments: Sequence[Any]
) -> list[int] | None:
    """A size n for each argument: with integers from 0 to n - 1 in it, `result` is a finding of nothing.

    values: what is known in each slot, the first being the arguments'. arguments: their types. None where there are no
    such sizes.
    """
    limits = [values[step.operands[1]] for step in steps if step.name == "ge"]
    sizes = sorted({int(n) for n in limits if n is not None and np.ndim(n) == 0})
    whole = all(np.dtype(a.dtype).kind in "iu" and a.size for a in arguments)
    if not sizes or not whole or not 0 < sizes[0] <= sizes[-1] <= _MOST:
        return None
    found = [min(sizes[0], int(np.iinfo(a.dtype).max)) for a in arguments]
    if not _finds_nothing(steps, values, result, arguments, found):
        return None
    for i, argument in enumerate(arguments):
        for size in sizes[1:]:
            wider = [*found[:i], min(size, int(np.iinfo(argument.dtype).max)), *found[i + 1 :]]
            if _finds_nothing(steps, values, result, arguments, wider):
                found = wider
    return found


def _finds_nothing(
    steps: Sequence[Step], values: Sequence[Any], result: int, arguments: Sequence[Any], sizes: Sequence[int]
) -> bool:
    bounds: list[Any] = [None if x is None else Bounds(x, x) for x in values]
    for i, (argument, size) in enumerate(zip(arguments, sizes)):
        bounds[i] = Bounds(np.zeros(argument.shape, argument.dtype), np.full(argument.shape, size - 1, argument.dtype))
    try:
        for step in steps:
            bounds[step.out] = _bounds(step, [bounds[i] for i in step.operands])
    except _Unknown:
        return False
    return not bounds[result].low[0] and not bounds[result].high[0]


def _bounds(step: Step, given: list[Bounds]) -> Bounds:
    name, function, (first, *more) = step.name, step.function, given
    if name in _MONOTONE and (name not in ("and", "or") or np.asarray(first.low).dtype == np.bool_):
        return Bounds(function(*[b.low for b in given]), function(*[b.high for b in given]))
    if name == "convert_element_type":
        ends = Bounds(function(first.low), function(first.high))
        if np.array_equal(ends.low, first.low) and np.array_equal(ends.high, first.high):
            return ends
    if name == "sub" and np.asarray(first.low).dtype.kind == "i" and np.asarray(first.low).dtype.itemsize >= 4:
        (other,) = more
        if max(np.max(np.abs(b)) for b in (*first, *other)) <= _MOST:
            return Bounds(first.low - other.high, first.high - other.low)
    if name in ("lt", "le"):
        return Bounds(function(first.high, more[0].low), function(first.low, more[0].high))
    if name in ("gt", "ge"):
        return Bounds(function(first.low, more[0].high), function(first.high, more[0].low))
    if name in ("eq", "ne"):
        (other,) = more
        equal = (first.low == first.high) & (other.low == other.high) & (first.low == other.low)
        may_be = (first.low <= other.high) & (other.low <= first.high)
        return Bounds(equal, may_be) if name == "eq" else Bounds(np.logical_not(may_be), np.logical_not(equal))
    if name == "select_n":
        no, yes = more
        low = np.where(first.low, yes.low, np.where(first.high, np.minimum(no.low, yes.low), no.low))
        return Bounds(low, np.where(first.low, yes.high, np.where(first.high, np.maximum(no.high, yes.high), no.high)))
    raise _Unknown
