"""The algebra of layouts: which element of a tensor is in which cell, at which address and lane.

A layout splits every axis of a tensor into subaxes, major to minor. A subaxis `size_Level:stride` runs over the
indices of a level of the machine, `size:stride` over addresses (long words), `size_W:stride` over the lanes of a long
word and `size_Time:stride` over time slices. The product of an axis' subaxes is its padded size. Levels that no
subaxis uses hold copies and are listed behind B@: `(125)/((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])`.

The notation is MLSDK's; its meaning is as its published dumps fix it.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .subaxes import ADDRESS, LANE, TIME, Axis, Copies, LayoutError, SubAxis, merge, regroup, split

__all__ = ["ADDRESS", "LANE", "TIME", "Axis", "Copies", "Layout", "LayoutError", "SubAxis"]


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
        return Layout(self.shape, tuple(merge(axis) for axis in self.axes), tuple(sorted(self.copies, key=str)))

    def is_same_as(self, other: Layout) -> bool:
        """Does every element lie in the same places? The text may differ."""
        return self.merged() == other.merged()

    # ---- derived layouts

    def transposed(self, perm: Sequence[int]) -> Layout:
        """The layout of the transposed tensor where it lies: nothing moves."""
        return Layout(tuple(self.shape[i] for i in perm), tuple(self.axes[i] for i in perm), self.copies)

    def reshaped(self, shape: Sequence[int]) -> Layout:
        """The layout of the reshaped tensor where it lies. Raises LayoutError where elements would have to move.

        Axes are regrouped from the left. Only the first old axis of a group (apart from those of size 1 before it) may
        be padded: its padding then lies behind the end of the group's first new axis.
        """
        axes: list[Axis] = []
        for old, new in regroup(self.shape, tuple(shape)):
            behind = itertools.dropwhile(lambda i: self.shape[i] == 1, old)
            if any(self.padded_shape[i] != self.shape[i] for i in [*behind][1:]):
                raise LayoutError(f"layout {self}: padding inside a group of axes that reshape to {tuple(shape)}")
            flat = [sub for i in old for sub in self.axes[i]]
            axes += split(flat, [shape[i] for i in new], f"layout {self} reshaped to {tuple(shape)}")
        return Layout(tuple(shape), tuple(axes), self.copies)

    def for_operand(self, shape: Sequence[int]) -> Layout:
        """The layout of an operand that broadcasts (numpy's rules) to this shape: copies where it is repeated.

        Repetition over addresses or time slices needs no copy: every one of those reads the same long word.
        """
        lead = len(self.shape) - len(shape)
        if lead < 0:
            raise LayoutError(f"layout {self}: an operand of shape {tuple(shape)} has more axes")
        axes: list[Axis] = []
        copies = list(self.copies)
        for i, axis in enumerate(self.axes):
            size = shape[i - lead] if i >= lead else 1
            if size == self.shape[i] and i >= lead:
                axes.append(axis)
                continue
            if size != 1:
                raise LayoutError(f"layout {self}: an operand of shape {tuple(shape)} does not broadcast to it")
            copies += [
                Copies(sub.level, sub.size, sub.stride)
                for sub in axis
                if sub.level not in (ADDRESS, TIME) and sub.size > 1
            ]
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
                fused = merge(tuple(SubAxis(p.size or 1, level, p.stride) for p in sorted(parts, key=_by_stride)))
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
        """Raises LayoutError unless subaxes and copies cover every level exactly once, and addresses at most once.

        levels: index levels with their sizes, lanes of the dtype under LANE.
        """
        self._check_addresses()
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

    def _check_addresses(self) -> None:
        """Raises LayoutError where two elements of a cell would lie at one address."""
        free = 1
        for step in sorted((sub for sub in self.subaxes if sub.level == ADDRESS and sub.size > 1), key=_by_reach):
            if step.stride < free:
                raise LayoutError(f"layout {self}: {step} comes to addresses that another subaxis reaches")
            free += (step.size - 1) * step.stride


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
