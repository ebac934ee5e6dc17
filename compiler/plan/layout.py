"""The algebra of layouts: which element of a tensor is in which cell, at which address and lane.

A layout splits every axis of a tensor into subaxes, major to minor. A subaxis `size_Level:stride` runs over the
indices of a level of the machine, `size:stride` over addresses (long words), `size_W:stride` over the lanes of a long
word and `size_Time:stride` over time slices. The product of an axis' subaxes is its padded size. Levels that no
subaxis uses hold copies and are listed behind B@: `(125)/((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])`.

The notation is MLSDK's; its meaning is as its published dumps fix it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pfvm.errors import PfvmError

ADDRESS, LANE, TIME = "", "W", "Time"


class LayoutError(PfvmError, ValueError):
    """A layout that does not exist: bad text, or one that a machine, a dtype or a reshape does not allow."""


class SubAxis(NamedTuple):
    """`size` steps of `stride` in the index of a level: a machine's level, ADDRESS, LANE or TIME."""

    size: int
    level: str = ADDRESS
    stride: int = 1

    def __str__(self) -> str:
        return f"{self.size}_{self.level}:{self.stride}" if self.level else f"{self.size}:{self.stride}"


class Copies(NamedTuple):
    """Copies over a level: over the whole of it (size None), or `size` steps of `stride`."""

    level: str
    size: int | None = None
    stride: int = 1

    def __str__(self) -> str:
        return self.level if self.size is None else f"{self.size}_{self.level}:{self.stride}"


Axis = tuple[SubAxis, ...]


@dataclass(frozen=True)
class Layout:
    """One layout. `axes` has one tuple of subaxes per axis of `shape`; () is an axis of size 1."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    copies: tuple[Copies, ...] = ()

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            raise LayoutError(f"layout {self}: {len(self.axes)} axes for the {len(self.shape)} of its shape")
        for size, padded in zip(self.shape, self.padded_shape):
            if padded < size:
                raise LayoutError(
                    f"layout {self}: an axis of {size} does not fit its subaxes, which have room for {padded}"
                )

    # ---- text

    def __str__(self) -> str:
        axes = ", ".join(f"({', '.join(map(str, axis))})" for axis in self.axes)
        copies = f"; B@[{','.join(map(str, self.copies))}]" if self.copies else ""
        return f"({','.join(map(str, self.shape))})/({axes}{copies})"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that a text says. Raises LayoutError."""
        match = _LAYOUT.fullmatch(text.strip())
        if match is None:
            raise LayoutError(f"no layout: {text!r}; a layout reads (125)/((8_L2B:1, 2:1); B@[PE,W])")
        shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
        axes = tuple(_parse_axis(axis, text) for axis in re.findall(r"\(([^()]*)\)", match["axes"]))
        copies = tuple(_parse_copies(word, text) for word in (match["copies"] or "").split(",") if word.strip())
        return cls(shape, axes, copies)

    # ---- sizes

    @functools.cached_property
    def padded_shape(self) -> tuple[int, ...]:
        """The room of each axis, in elements."""
        return tuple(math.prod(sub.size for sub in axis) for axis in self.axes)

    @functools.cached_property
    def subaxes(self) -> tuple[SubAxis, ...]:
        """All subaxes, in the order of the axes."""
        return tuple(sub for axis in self.axes for sub in axis)

    @property
    def is_padded(self) -> bool:
        """Is there room behind the end of an axis?"""
        return self.padded_shape != self.shape

    def extent(self, level: str) -> int:
        """How many indices of a level (or addresses, lanes, slices) the subaxes reach over: at least 1."""
        return 1 + sum((sub.size - 1) * sub.stride for sub in self.subaxes if sub.level == level)

    def num_lw(self, granularity: int = 2) -> int:
        """Long words per innermost cell: the addresses reached over, in multiples of an allocation's granularity."""
        return -(-self.extent(ADDRESS) // granularity) * granularity

    def stored_elements(self) -> int:
        """Padded elements without copies, lanes of copies included once: what a transfer has to move."""
        return math.prod(self.padded_shape)

    # ---- equality

    def merged(self) -> Layout:
        """The same placement with adjacent subaxes fused (a_X:s·n, n_X:s → a·n_X:s) and those of size 1 dropped."""
        return Layout(self.shape, tuple(_merge(axis) for axis in self.axes), tuple(sorted(self.copies)))

    def is_same_as(self, other: Layout) -> bool:
        """Does every element lie in the same places? The text may differ."""
        return self.merged() == other.merged()

    # ---- derived layouts

    def transposed(self, perm: Sequence[int]) -> Layout:
        """The layout of the transposed tensor where it lies: nothing moves."""
        return Layout(tuple(self.shape[i] for i in perm), tuple(self.axes[i] for i in perm), self.copies)

    def reshaped(self, shape: Sequence[int]) -> Layout:
        """The layout of the reshaped tensor where it lies. Raises LayoutError where elements would have to move.

        Axes are regrouped from the left. Only the first old axis of a group may be padded: its padding then lies
        behind the end of the group's first new axis.
        """
        axes: list[Axis] = []
        for old, new in _groups(self.shape, tuple(shape)):
            if any(self.padded_shape[i] != self.shape[i] for i in old[1:]):
                raise LayoutError(f"layout {self}: padding inside a group of axes that reshape to {tuple(shape)}")
            flat = [sub for i in old for sub in self.axes[i]]
            axes += _split(flat, [shape[i] for i in new], f"layout {self} reshaped to {tuple(shape)}")
        return Layout(tuple(shape), tuple(axes), self.copies)

    def for_operand(self, shape: Sequence[int]) -> Layout:
        """The layout of an operand that broadcasts (numpy's rules) to this shape: copies where it is repeated.

        Repetition over addresses needs no copy: every one of those reads the same long word.
        """
        lead = len(self.shape) - len(shape)
        axes: list[Axis] = []
        copies = list(self.copies)
        for i, axis in enumerate(self.axes):
            size = shape[i - lead] if i >= lead else 1
            if size == self.shape[i]:
                if i >= lead:
                    axes.append(axis)
                continue
            if size != 1:
                raise LayoutError(f"layout {self}: an operand of shape {tuple(shape)} does not broadcast to it")
            copies += [Copies(sub.level, sub.size, sub.stride) for sub in axis if sub.level != ADDRESS]
            if i >= lead:
                axes.append(())
        return Layout(tuple(shape), tuple(axes), tuple(copies))

    def normalized(self, levels: Mapping[str, int]) -> Layout:
        """Copies in the usual order, innermost level first and lanes behind it, whole levels by their name alone.

        levels: index levels outermost first, lanes under LANE.
        """
        rank = _copies_order(levels)
        by_level: dict[str, list[Copies]] = {}
        for copy in self.copies:
            by_level.setdefault(copy.level, []).append(copy)
        result: list[Copies] = []
        for level in sorted(by_level, key=lambda name: rank.get(name, -1)):
            parts = by_level[level]
            size = math.prod(levels[level] if part.size is None else part.size for part in parts)
            if size == levels.get(level):
                result.append(Copies(level))
            else:
                fused = _merge(tuple(SubAxis(p.size or 1, level, p.stride) for p in sorted(parts, key=_by_stride)))
                result += [Copies(sub.level, sub.size, sub.stride) for sub in fused]
        return Layout(self.shape, self.axes, tuple(result))

    # ---- elements and places

    def locate(self, index: Sequence[int]) -> dict[str, int]:
        """Level → index there of the first copy of an element, ADDRESS, LANE and TIME included."""
        place = {sub.level: 0 for sub in self.subaxes} | {ADDRESS: 0}
        for position, axis in zip(index, self.axes):
            for sub in reversed(axis):
                position, here = divmod(position, sub.size)
                place[sub.level] += here * sub.stride
        return place

    def element(self, place: Mapping[str, int]) -> tuple[int, ...] | None:
        """The (padded) index of the element in a place, None where nothing of the tensor lies.

        Levels that `place` leaves out count as 0.
        """
        digits: dict[SubAxis, int] = {}
        for level in {sub.level for sub in self.subaxes} | set(place):
            rest = place.get(level, 0)
            copies = [SubAxis(c.size or rest + 1, level, c.stride) for c in self.copies if c.level == level]
            for sub in sorted([*(s for s in self.subaxes if s.level == level), *copies], key=_by_stride):
                digit = min(rest // sub.stride, sub.size - 1)
                rest -= digit * sub.stride
                digits[sub] = digit
            if rest:
                return None
        index = []
        for axis in self.axes:
            position = 0
            for sub in axis:
                position = position * sub.size + digits[sub]
            index.append(position)
        return tuple(index)

    # ---- memory

    def view(self, block: np.ndarray, levels: Mapping[str, int]) -> np.ndarray:
        """A strided view of a block of memory: one axis per subaxis, in order, then one per copy.

        block: [addresses, *levels outermost first, lanes]; levels: the names of its middle axes. A write through the
        view reaches every copy.
        """
        strides = dict(zip((ADDRESS, *levels, LANE), block.strides))
        steps = [
            *self.subaxes,
            *(SubAxis(c.size or self._size(c.level, block, levels), c.level, c.stride) for c in self.copies),
        ]
        needed = self.extent(ADDRESS)
        if needed > block.shape[0]:
            raise LayoutError(f"layout {self} reaches over {needed} long words, the block has {block.shape[0]}")
        return np.lib.stride_tricks.as_strided(
            block, tuple(step.size for step in steps), tuple(strides[step.level] * step.stride for step in steps)
        )

    def _size(self, level: str, block: np.ndarray, levels: Mapping[str, int]) -> int:
        return block.shape[-1] if level == LANE else levels[level]

    def write(self, block: np.ndarray, levels: Mapping[str, int], padded: np.ndarray) -> None:
        """Stores a tensor of `padded_shape`, with all copies."""
        sizes = [sub.size for sub in self.subaxes]
        self.view(block, levels)[...] = padded.reshape(tuple(sizes) + (1,) * len(self.copies))

    def read(self, block: np.ndarray, levels: Mapping[str, int]) -> np.ndarray:
        """The tensor of `padded_shape` (a copy of the first copies)."""
        view = self.view(block, levels)
        for _ in self.copies:
            view = view[..., 0]
        return view.reshape(self.padded_shape)

    def valid(self) -> tuple[slice, ...]:
        """Where in a tensor of `padded_shape` its elements are."""
        return tuple(slice(0, size) for size in self.shape)

    def check(self, levels: Mapping[str, int]) -> None:
        """Raises LayoutError unless subaxes and copies cover every level exactly once.

        levels: index levels with their sizes, lanes of the dtype under LANE.
        """
        for level, size in levels.items():
            steps = [
                SubAxis(sub.size, level, sub.stride) for sub in self.subaxes if sub.level == level and sub.size > 1
            ]
            steps += [
                SubAxis(size if c.size is None else c.size, level, c.stride) for c in self.copies if c.level == level
            ]
            expected = 1
            for step in sorted(steps, key=_by_reach):
                if step.stride != expected and step.size > 1:
                    break
                expected *= step.size
            else:
                if expected == size:
                    continue
            used = ", ".join(map(str, steps)) or "nothing"
            raise LayoutError(f"layout {self}: level {level} has {size} indices, its subaxes and copies are {used}")
        named = {sub.level for sub in self.subaxes} | {copies.level for copies in self.copies}
        unknown = named - set(levels) - {ADDRESS, TIME}
        if unknown:
            raise LayoutError(f"layout {self}: the machine has no level {', '.join(sorted(unknown))}")


_LAYOUT = re.compile(r"\((?P<shape>[\d, ]*)\)\s*/\s*\((?P<axes>[^;\[\]]*)(;\s*B@\[(?P<copies>[^\]]*)\])?\)")
_STEP = re.compile(r"(\d+)(?:_([A-Za-z]\w*))?:(\d+)")


def _parse_axis(text: str, whole: str) -> Axis:
    subaxes = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _STEP.fullmatch(word)
        if match is None:
            raise LayoutError(f"layout {whole!r}: {word!r} is no subaxis; one reads 8_L2B:1 or 2:4")
        subaxes.append(SubAxis(int(match[1]), match[2] or ADDRESS, int(match[3])))
    return tuple(subaxes)


def _parse_copies(text: str, whole: str) -> Copies:
    match = _STEP.fullmatch(text.strip())
    if match and match[2]:
        return Copies(match[2], int(match[1]), int(match[3]))
    if not re.fullmatch(r"[A-Za-z]\w*", text.strip()):
        raise LayoutError(f"layout {whole!r}: {text!r} is no level to copy over; one reads PE or 8_L2B:1")
    return Copies(text.strip())


def _by_stride(step: SubAxis | Copies) -> int:
    return -step.stride


def _by_reach(step: SubAxis) -> tuple[int, int]:
    return step.stride, step.size


def _copies_order(levels: Mapping[str, int]) -> dict[str, int]:
    """Innermost first, as published dumps list them, with lanes behind the innermost level: PE, W, MAB, L1B, L2B."""
    names = [level for level in reversed(list(levels)) if level != LANE]
    return {name: i for i, name in enumerate([names[0], LANE, *names[1:]])}


def _merge(axis: Iterable[SubAxis]) -> Axis:
    merged: list[SubAxis] = []
    for sub in axis:
        if sub.size == 1:
            continue
        last = merged[-1] if merged else None
        if last and last.level == sub.level and last.stride == sub.size * sub.stride:
            merged[-1] = SubAxis(last.size * sub.size, sub.level, sub.stride)
        else:
            merged.append(sub)
    return tuple(merged)


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of old and new axes with equal products, from the left; raises where there are none."""
    if math.prod(old) != math.prod(new):
        raise LayoutError(f"a shape {old} cannot be reshaped to {new}")
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds: list[int] = []
        news: list[int] = []
        left = right = 1
        while True:
            if i < len(old) and (left <= right and not (left == right and olds)):
                left *= old[i]
                olds.append(i)
                i += 1
            elif j < len(new) and (right < left or not news):
                right *= new[j]
                news.append(j)
                j += 1
            else:
                break
        while i < len(old) and old[i] == 1 and left == right:
            olds.append(i)
            i += 1
        while j < len(new) and new[j] == 1 and left == right:
            news.append(j)
            j += 1
        groups.append((olds, news))
    return groups


def _split(flat: list[SubAxis], sizes: list[int], what: str) -> list[Axis]:
    """Deals subaxes to new axes, minor axis first; the first new axis takes what is left, padding included."""
    rest = list(flat)
    result: list[Axis] = []
    for size in reversed(sizes[1:]):
        taken: list[SubAxis] = []
        needed = size
        while needed > 1:
            if not rest:
                raise LayoutError(f"{what}: its subaxes do not split at the new axes")
            sub = rest.pop()
            if needed % sub.size == 0:
                taken.insert(0, sub)
                needed //= sub.size
            elif sub.size % needed == 0:
                taken.insert(0, SubAxis(needed, sub.level, sub.stride))
                rest.append(SubAxis(sub.size // needed, sub.level, sub.stride * needed))
                needed = 1
            else:
                raise LayoutError(f"{what}: {sub} does not split at an axis of {size}")
        result.insert(0, tuple(taken))
    first = _merge(rest)
    if sizes:
        result.insert(0, first)
    elif first:
        raise LayoutError(f"{what}: subaxes without an axis")
    return [_merge(axis) for axis in result]
