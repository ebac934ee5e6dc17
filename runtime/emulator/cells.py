"""Where the elements of a layout are: indices of levels per element, and the order in which DRAM stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pfvm.compiler.plan.layout import ADDRESS, LANE, Axis, Layout

Array = np.ndarray


def axis_steps(axis: Axis, level: str) -> Array:
    """For each position along a padded axis, what it adds to the index of a level."""
    steps = np.zeros(1, np.int64)
    for sub in axis:
        here = np.arange(sub.size, dtype=np.int64) * (sub.stride if sub.level == level else 0)
        steps = (steps[:, None] + here[None, :]).reshape(-1)
    return steps


def copy_offsets(layout: Layout, level: str, size: int) -> Array:
    """The indices of a level, from an element's first, at which its copies are: [0] where there is one only."""
    offsets = np.zeros(1, np.int64)
    for copies in layout.copies:
        if copies.level == level:
            here = np.arange(copies.size or size, dtype=np.int64) * copies.stride
            offsets = (offsets[:, None] + here[None, :]).reshape(-1)
    return offsets


def places(layout: Layout, levels: Mapping[str, int], reach: int) -> Array:
    """One number per element of the valid region, equal for two elements only if they lie in one place.

    levels: index levels with their sizes, lanes included; reach: more addresses than any layout here has.
    """
    total = np.zeros((1,) * len(layout.shape), np.int64)
    unit = 1
    for level, size in ((ADDRESS, reach), *levels.items()):
        for i, axis in enumerate(layout.axes):
            steps = axis_steps(axis, level)[: layout.shape[i]] * unit
            total = total + steps.reshape([-1 if j == i else 1 for j in range(len(layout.shape))])
        unit *= size
    return np.broadcast_to(total, layout.shape)


def cell_parts(layout: Layout, axis: int, levels: Iterable[str]) -> list[Array]:
    """The positions along an axis, those that lie in one cell of the given levels together."""
    cells = np.zeros(layout.shape[axis], np.int64)
    for level in levels:
        steps = axis_steps(layout.axes[axis], level)[: layout.shape[axis]]
        cells = cells * (int(steps.max(initial=0)) + 1) + steps
    return [np.flatnonzero(cells == cell) for cell in np.unique(cells)]


def dense_order(layout: Layout, level_names: Iterable[str]) -> list[int]:
    """The order of a layout's subaxes in DRAM: time, outermost level first, addresses, lanes; no copies or holes."""
    rank = {level: i for i, level in enumerate([*level_names, ADDRESS, LANE])}
    subs = layout.subaxes
    return sorted(range(len(subs)), key=lambda i: (rank.get(subs[i].level, -1), -subs[i].stride, i))


def differences(ours: Sequence[Array], theirs: Sequence[Array]) -> set[int]:
    """All sums over axes of (ours - theirs), per axis vectors of equal length or length 1."""
    found = {0}
    for a, b in zip(ours, theirs):
        apart = set(np.unique(a - b).tolist())
        if apart != {0}:
            found = {x + y for x in found for y in apart}
    return found
