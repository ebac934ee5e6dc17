"""The pieces of a layout: steps over levels, addresses, lanes and time, and how they split and fuse at new axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

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


def merge(axis: Iterable[SubAxis]) -> Axis:
    """Adjacent subaxes that are one, fused; those of size 1 dropped."""
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


def regroup(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
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


def split(flat: list[SubAxis], sizes: list[int], what: str) -> list[Axis]:
    """Deals subaxes to new axes, minor axis first; the first new axis takes what is left, padding included."""
    rest = list(flat)
    result: list[Axis] = []
    ones = next((i for i, size in enumerate(sizes) if size != 1), 0)  # axes of size 1 in front take nothing
    for size in reversed(sizes[ones + 1 :]):
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
    first = merge(rest)
    if sizes:
        result = [*([()] * ones), first, *result]
    elif first:
        raise LayoutError(f"{what}: subaxes without an axis")
    return [merge(axis) for axis in result]
