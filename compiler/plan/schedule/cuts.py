"""How a layout is cut into time slices: along a part of an address subaxis, so that elements keep cell and lane."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pfvm.compiler.plan.layout import ADDRESS, TIME, Axis, Layout, SubAxis


@dataclass(frozen=True)
class Cut:
    """`count` slices of one axis: position p of that axis is in slice p // after % count. `before`: how often that
    repeats, so that before · count · after is the padded size."""

    axis: int
    before: int
    count: int
    after: int

    def positions(self, size: int, number: int) -> list[int]:
        """The positions of an axis of `size` that are in one slice, in order."""
        return [p for p in range(size) if p // self.after % self.count == number]

    def on(self, axis: int) -> Cut:
        """The same cut of another tensor's axis."""
        return replace(self, axis=axis)


def cuts(layout: Layout, axis: int) -> Iterator[Cut]:
    """The cuts of an axis that its address subaxes allow, fewest slices first, whole outer parts before inner ones."""
    found = []
    subaxes = layout.axes[axis]
    for i, sub in enumerate(subaxes):
        if sub.level != ADDRESS:
            continue
        before = math.prod(other.size for other in subaxes[:i])
        after = math.prod(other.size for other in subaxes[i + 1 :])
        for count in _divisors(sub.size):
            found += [
                Cut(axis, before * outer, count, sub.size // (outer * count) * after)
                for outer in [1, *_divisors(sub.size // count)]
            ]
    yield from sorted(found, key=lambda cut: (cut.count, cut.before))


def slice_layout(layout: Layout, cut: Cut, number: int) -> Layout | None:
    """The layout of one slice; None where the layout cannot be cut so, or nothing would be in the slice."""
    axes = _axes(layout, cut, with_time=False)
    size = len(cut.positions(layout.shape[cut.axis], number))
    if axes is None or not size:
        return None
    shape = tuple(size if i == cut.axis else whole for i, whole in enumerate(layout.shape))
    return Layout(shape, axes, layout.copies)


def timed_layout(layout: Layout, cut: Cut) -> Layout | None:
    """The layout of the whole in DRAM, with a subaxis of level Time; None where it cannot be cut so."""
    axes = _axes(layout, cut, with_time=True)
    return None if axes is None else Layout(layout.shape, axes, layout.copies)


def is_same_but_time(a: Layout, b: Layout) -> bool:
    """Has every element the same cell and lane, while time slices of one are addresses of the other?

    It is what a Download or an Upload of a whole does that lies in DRAM in slices.
    """
    return _cells(a) == _cells(b) and a.padded_shape == b.padded_shape


def _cells(layout: Layout) -> tuple[object, ...]:
    """Of every axis the subaxes of levels and lanes, each with how many positions lie inside it."""
    axes = []
    for axis in layout.merged().axes:
        inside = [math.prod(sub.size for sub in axis[i + 1 :]) for i in range(len(axis))]
        axes.append(tuple((sub, n) for sub, n in zip(axis, inside) if sub.level not in (ADDRESS, TIME)))
    return (layout.shape, tuple(axes), tuple(sorted(layout.copies)))


def _axes(layout: Layout, cut: Cut, with_time: bool) -> tuple[Axis, ...] | None:
    found = _find(layout.axes[cut.axis], cut)
    if found is None:
        return None
    where, outer, inner = found
    sub = layout.axes[cut.axis][where]
    step = sub.stride * inner  # of the addresses that go
    parts = [SubAxis(outer, ADDRESS, step * cut.count), SubAxis(inner, ADDRESS, sub.stride)]
    if with_time:
        parts.insert(1, SubAxis(cut.count, TIME, 1))
    result = []
    for i, axis in enumerate(layout.axes):
        split = (*axis[:where], *parts, *axis[where + 1 :]) if i == cut.axis else axis
        closed = [_closed(other, step, cut.count) for other in split]
        if None in closed:
            return None
        result.append(tuple(other for other in closed if other is not None and (other.size > 1 or len(split) == 1)))
    return tuple(result)


def _find(axis: Axis, cut: Cut) -> tuple[int, int, int] | None:
    """Which subaxis is cut, and its parts outside and inside."""
    for i, sub in enumerate(axis):
        before = math.prod(other.size for other in axis[:i])
        after = math.prod(other.size for other in axis[i + 1 :])
        if sub.level != ADDRESS or cut.before % before or cut.after % after:
            continue
        outer, inner = cut.before // before, cut.after // after
        if outer * cut.count * inner == sub.size:
            return i, outer, inner
    return None


def _closed(sub: SubAxis, step: int, count: int) -> SubAxis | None:
    """A subaxis once `count` addresses of stride `step` are one; None where it steps between them."""
    if sub.level != ADDRESS or sub.size == 1 or sub.stride < step:
        return sub
    return sub._replace(stride=sub.stride // count) if sub.stride % (step * count) == 0 else None


def _divisors(number: int) -> list[int]:
    """Those above 1, in order."""
    return [d for d in range(2, number + 1) if number % d == 0]
