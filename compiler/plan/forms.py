"""The layouts that a plan chooses from: the matrix form, the weight of a product, what a host writes, lanes converted.

No level is named here. A machine's levels outside its matrix units take rows, the matrix units themselves take columns,
and lanes with the levels inside a matrix unit make its operand block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence

from .layout import ADDRESS, LANE, Axis, Copies, Layout, SubAxis
from .machine import Machine


class Forms:
    """The layouts of one machine. Every form is made in the widest word (most lanes), then converted to the dtype."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.row_levels = machine.levels_outside_matrix
        self.column_levels = (machine.matrix_unit.level,)
        self.block_levels = machine.levels_inside_matrix
        self.lanes = max(dtype.lanes for dtype in machine.dtypes.values())
        self._filled = functools.cache(self._new_filled)
        self._matrix = functools.cache(self._new_matrix)

    @functools.cached_property
    def block(self) -> int:
        """Elements of one operand block of the matrix unit: 16 on a machine with 4 cells of 4 lanes."""
        return self.lanes * math.prod(self.machine.index_levels[level] for level in self.block_levels)

    # ---- forms

    def matrix(self, shape: Sequence[int], dtype: str, column: int | None = -1, whole: Collection[int] = ()) -> Layout:
        """Rows × columns: axis `column` is dealt to the matrix units, all others to the cells that hold them.

        column None: the last axis, but in three and more the one that leaves much less padding. whole: axes that stay
        in one cell.
        (125, 1024) of Half on MN-Core 2: ((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4:2, 4_W:1, 4_PE:1)).
        """
        return self._matrix(tuple(shape), dtype, column, tuple(whole))

    def _new_matrix(self, shape: tuple[int, ...], dtype: str, column: int | None, whole: tuple[int, ...]) -> Layout:
        if not shape:
            return self.filled(shape, (), dtype)
        if column is None:
            column = self._best_column(shape)
        column %= len(shape)
        axes, extent = self._deal_rows([1 if i == column else size for i, size in enumerate(shape)], whole)
        axes[column] = self._column(shape[column], extent)
        return self.in_lanes(self.filled(shape, axes, None), self.lanes, self.machine.lanes(dtype))

    def weight(
        self,
        shape: Sequence[int],
        dtype: str,
        data: Layout,
        data_dtype: str,
        axes: Sequence[int | None],
        column: int,
        over_copies: bool = False,
    ) -> Layout:
        """The stationary operand of a product whose other operand lies in `data`.

        axes: for each axis the axis of `data` that it is contracted or batched with, None where it stands alone; the
        axis `column` becomes the output's columns. Contracted blocks lie at successive addresses, in every matrix
        unit that has their part of the data: (256, 1024) beside a (125, 1024) is
        ((16:64, 4_W:1, 4_PE:1), (16_MAB:1, 4:16, 4:1, 4:4); B@[L1B,L2B]).

        over_copies: cells that have copies of the data get other columns each.
        """
        data = self.in_lanes(data, self.machine.lanes(data_dtype), self.lanes)
        result: list[Axis] = [()] * len(shape)
        reach = 1
        contracted = [i for i, axis in enumerate(axes) if axis is not None and shape[i] > 1]
        for i in contracted:
            if self._in_block(data.axes[axes[i] or 0]):
                result[i], reach = self._stationary(data.axes[axes[i] or 0])
        for i in reversed(range(len(shape))):
            if i == column or result[i] or shape[i] == 1:
                continue
            dealt = data.axes[axes[i] or 0] if i in contracted else ()
            result[i], reach = _with_addresses(dealt, shape[i], reach)
        blocks = -(-shape[column] // self.block)
        shared = self._over_copies(data, blocks) if over_copies else ()
        result[column], _ = _with_addresses(shared, blocks, reach)
        result[column] += self._block_axis()
        return self.in_lanes(self.filled(shape, result, None), self.lanes, self.machine.lanes(dtype))

    def per_column(self, shape: Sequence[int], dtype: str, data: Layout, data_dtype: str, column: int) -> Layout:
        """An operand whose first axis is the columns of `data`, in the cells that have them; all else in addresses."""
        data = self.in_lanes(data, self.machine.lanes(data_dtype), self.lanes)
        axes = [*_closed_up([data.axes[column]]), *[()] * (len(shape) - 1)]
        reach = math.prod(sub.size for sub in axes[0] if sub.level == ADDRESS)
        for i in reversed(range(1, len(shape))):
            axes[i], reach = _with_addresses((), shape[i], reach)
        return self.in_lanes(self.filled(shape, axes, None), self.lanes, self.machine.lanes(dtype))

    def host(self, shape: Sequence[int], dtype: str) -> Layout:
        """What a host writes where nothing is asked for: rows dealt out, lanes last."""
        if len(shape) != 1:
            return self.matrix(shape, dtype, None)
        lanes = self.machine.lanes(dtype)
        axis: Axis = ()
        rest = -(-shape[0] // lanes)
        for level in self.row_levels:
            part = _divisor(self.machine.index_levels[level], rest)
            rest = -(-rest // part)
            if part > 1:
                axis += (SubAxis(part, level),)
        return self.filled(shape, [(*axis, SubAxis(rest), SubAxis(lanes, LANE))], dtype)

    def parameter(self, shape: Sequence[int], dtype: str) -> Layout:
        """A shape, axes, pads …: dealt to the innermost level of rows, copies elsewhere."""
        if not shape:
            return self.filled(shape, (), dtype)
        axes: list[Axis] = []
        reach = 1
        for size in reversed(tuple(shape)[1:]):
            axis, reach = _with_addresses((), size, reach)
            axes.insert(0, axis)
        whole = self.machine.index_levels[self.row_levels[-1]] if self.row_levels else 1
        level: Axis = (SubAxis(whole, self.row_levels[-1]),) if whole > 1 else ()
        first, _ = _with_addresses(level, shape[0], reach)
        return self.filled(shape, [first, *axes], dtype)

    # ---- lanes

    def filled(self, shape: Sequence[int], axes: Sequence[Axis], dtype: str | None) -> Layout:
        """The layout with these axes, and copies over every index of a level that they leave out."""
        return self._filled(tuple(shape), tuple(axes), self.lanes if dtype is None else self.machine.lanes(dtype))

    def _new_filled(self, shape: tuple[int, ...], axes: tuple[Axis, ...], lanes: int) -> Layout:
        levels = {**self.machine.index_levels, LANE: lanes}
        used: dict[str, list[SubAxis]] = {level: [] for level in levels}
        for sub in (sub for axis in axes for sub in axis):
            if sub.level in used and sub.size > 1:
                used[sub.level].append(sub)
        copies = [copy for level, size in levels.items() for copy in _gaps(level, size, used[level])]
        return Layout(shape, axes, tuple(copies)).normalized(levels)

    def convert(self, layout: Layout, old: str, new: str) -> Layout:
        """The layout of the same elements in another dtype, each in the same cell. Returns the same object if equal."""
        return self.in_lanes(layout, self.machine.lanes(old), self.machine.lanes(new))

    def in_lanes(self, layout: Layout, old: int, new: int) -> Layout:
        """Like `convert`, by numbers of lanes. Lanes that do not fit move to addresses behind all others, and back.

        (4_W:1, 4_PE:1) of four lanes is (2:1, 2_W:1, 4_PE:1) of two.
        """
        if old == new:
            return layout
        axes = _narrowed(layout, new) if new < old else _widened(layout, new)
        return self._filled(layout.shape, axes, new)

    def operand(self, layout: Layout, shape: Sequence[int], dtype: str) -> Layout:
        """The layout of an operand (of `dtype`, as `layout` is) that broadcasts to `layout`'s shape, copies included.

        Addresses that only the other axes reach are closed up.
        """
        if tuple(shape) == layout.shape:
            return layout
        smaller = layout.for_operand(shape)
        return self.filled(smaller.shape, _closed_up(smaller.axes), dtype)

    def without(self, layout: Layout, axes: Sequence[int], dtype: str, keep: bool) -> Layout:
        """The layout of a reduction's result where its operand lies: copies where the reduced axes were.

        keep: reduced axes stay, with size 1.
        """
        kept = [i for i in range(len(layout.shape)) if i not in axes or keep]
        shape = tuple(1 if i in axes else layout.shape[i] for i in kept)
        subaxes = [() if i in axes else layout.axes[i] for i in kept]
        return self.filled(shape, _closed_up(subaxes), dtype)

    # ---- parts

    def _best_column(self, shape: tuple[int, ...]) -> int:
        last = len(shape) - 1
        if last < 2:
            return last
        dtype = next(iter(self.machine.dtypes))
        reach = [self.matrix(shape, dtype, i).extent(ADDRESS) for i in range(len(shape))]
        best = min(range(last + 1), key=lambda i: (reach[i], -i))
        return best if reach[best] * 2 <= reach[last] else last

    def _deal_rows(self, sizes: Sequence[int], whole: Collection[int]) -> tuple[list[Axis], int]:
        """Axes for the rows, the first taking the outermost levels, and how many addresses they reach over."""
        left = {level: self.machine.index_levels[level] for level in self.row_levels}
        dealt: list[list[tuple[str, int]]] = []
        for i, size in enumerate(sizes):
            parts: list[tuple[str, int]] = []
            for level in () if i in whole else self.row_levels:
                part = _divisor(left[level], size)
                if part > 1:
                    parts.append((level, part))
                    left[level] //= part
                    size = -(-size // part)
            parts.append((ADDRESS, size))
            dealt.append(parts)
        strides: dict[str, int] = {}
        axes: list[Axis] = []
        for parts in reversed(dealt):
            axis: list[SubAxis] = []
            for level, part in reversed(parts):
                if part > 1:
                    axis.insert(0, SubAxis(part, level, strides.get(level, 1)))
                    strides[level] = strides.get(level, 1) * part
            axes.insert(0, tuple(axis))
        return axes, strides.get(ADDRESS, 1)

    def _column(self, size: int, stride: int) -> Axis:
        if size == 1:
            return ()
        axis: list[SubAxis] = []
        blocks = -(-size // self.block)
        for level in self.column_levels:
            part = _divisor(self.machine.index_levels[level], blocks)
            blocks = -(-blocks // part)
            if part > 1:
                axis.append(SubAxis(part, level))
        if blocks > 1:
            axis.append(SubAxis(blocks, ADDRESS, stride))
        return (*axis, *self._block_axis())

    def _block_axis(self) -> Axis:
        subs = [SubAxis(self.lanes, LANE)]
        subs += [SubAxis(self.machine.index_levels[level], level) for level in self.block_levels]
        return tuple(sub for sub in subs if sub.size > 1)

    def _over_copies(self, data: Layout, blocks: int) -> Axis:
        """The part of an axis of blocks that goes to levels over which `data` has copies, innermost first."""
        axis: Axis = ()
        for level in (*self.column_levels, *reversed(self.row_levels)):
            for copies in data.copies:
                if copies.level == level:
                    part = _divisor(copies.size or self.machine.index_levels[level], blocks)
                    blocks = -(-blocks // part)
                    axis = (SubAxis(part, level, copies.stride), *axis) if part > 1 else axis
        return axis

    def _in_block(self, axis: Axis) -> bool:
        return any(sub.level in (LANE, *self.block_levels) for sub in axis)

    def _stationary(self, axis: Axis) -> tuple[Axis, int]:
        """A contracted axis of the stationary operand: lanes and innermost cells of the data become addresses."""
        strides, reach = {}, 1
        for level in (LANE, *self.block_levels):
            for sub in reversed(axis):
                if sub.level == level:
                    strides[sub] = reach
                    reach *= sub.size
        for sub in reversed(axis):
            if sub.level == ADDRESS:
                strides[sub] = reach
                reach *= sub.size
        return tuple(SubAxis(sub.size, ADDRESS, strides[sub]) if sub in strides else sub for sub in axis), reach


def _with_addresses(dealt: Axis, size: int, stride: int) -> tuple[Axis, int]:
    """The levels of an axis as dealt, and addresses of `stride` for the rest of its size."""
    levels = tuple(sub for sub in dealt if sub.level != ADDRESS)
    rest = -(-size // math.prod(sub.size for sub in levels))
    return (*levels, *((SubAxis(rest, ADDRESS, stride),) if rest > 1 else ())), stride * rest


def _divisor(count: int, needed: int) -> int:
    """The smallest divisor of `count` that has room for `needed`, `count` itself where none has."""
    return next(part for part in range(1, count + 1) if count % part == 0 and (part >= needed or part == count))


def _gaps(level: str, size: int, used: list[SubAxis]) -> list[Copies]:
    """Copies over what subaxes leave of a level."""
    if not used:
        return [Copies(level)] if size > 1 else []
    copies, reached = [], 1
    for sub in sorted(used, key=lambda sub: sub.stride):
        if sub.stride > reached:
            copies.append(Copies(level, sub.stride // reached, reached))
        reached = sub.stride * sub.size
    if reached < size:
        copies.append(Copies(level, size // reached, reached))
    return copies


def _narrowed(layout: Layout, lanes: int) -> tuple[Axis, ...]:
    """Lanes from `lanes` on become addresses behind all others."""
    reach = layout.extent(ADDRESS)
    axes: list[Axis] = []
    for axis in reversed(layout.axes):
        subs: list[SubAxis] = []
        for sub in axis:
            top = sub.size * sub.stride
            if sub.level != LANE or top <= lanes:
                subs.append(sub)
                continue
            kept = max(lanes // sub.stride, 1)
            subs.append(SubAxis(sub.size // kept, ADDRESS, reach))
            reach *= sub.size // kept
            if kept > 1:
                subs.append(SubAxis(kept, LANE, sub.stride))
        axes.insert(0, tuple(subs))
    return tuple(axes)


def _widened(layout: Layout, lanes: int) -> tuple[Axis, ...]:
    """Addresses just before the lanes of an axis fill a wider word, where they divide; else the rest is copies."""
    axes = []
    for axis in layout.axes:
        subs = list(axis)
        at = next((i for i, sub in enumerate(subs) if sub.level == LANE), None)
        if at:
            lane, before = subs[at], subs[at - 1]
            room = lanes // (lane.size * lane.stride)
            taken = math.gcd(room, before.size) if before.level == ADDRESS else 1
            if taken > 1:
                rest = [SubAxis(before.size // taken, ADDRESS, before.stride * taken)] if before.size > taken else []
                subs[at - 1 : at + 1] = [*rest, SubAxis(lane.size * taken, LANE, lane.stride)]
        axes.append(tuple(subs))
    return _closed_up(axes)


def _closed_up(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes with their addresses renumbered without holes, in the same order."""
    order = sorted({sub for axis in axes for sub in axis if sub.level == ADDRESS}, key=lambda s: (s.stride, s.size))
    strides, reach = {}, 1
    for sub in order:
        strides[sub] = reach
        reach *= sub.size
    return tuple(
        tuple(SubAxis(sub.size, ADDRESS, strides[sub]) if sub in strides else sub for sub in axis) for axis in axes
    )
