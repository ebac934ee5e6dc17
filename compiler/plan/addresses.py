"""Addresses: which long words of a memory a live value has, with reuse once it is dead.

All numbers are long words per cell that has the memory; an address in a dump is in the memory's own unit.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from .machine import Machine, Memory
from .placement import DRAM, Placement

Fit = Literal["first", "best", "last"]  # the lowest hole, the smallest one, or the end of the highest


class Block(NamedTuple):
    """Long words [start, end) of a memory that `key` has."""

    start: int
    end: int
    key: Hashable


class Arena:
    """The blocks that are live in one memory now. Every block is a multiple of `granularity` and aligned to it."""

    def __init__(self, size: int, granularity: int = 1) -> None:
        self.granularity = granularity
        self.size = size // granularity * granularity
        self.free = self.size
        self._blocks: list[Block] = []
        self._starts: dict[Hashable, int] = {}
        self._largest: int | None = self.size

    def __contains__(self, key: Hashable) -> bool:
        return key in self._starts

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def rounded(self, size: int) -> int:
        """The room that `size` long words take."""
        return max(-(-size // self.granularity), 1) * self.granularity

    def copy(self) -> Arena:
        """Another arena with the same blocks."""
        other = Arena(self.size, self.granularity)
        other.free, other._largest = self.free, self._largest
        other._blocks, other._starts = list(self._blocks), dict(self._starts)
        return other

    def has_blocks_of(self, other: Arena) -> bool:
        """Do both have the same keys at the same places?"""
        return self._blocks == other._blocks

    @property
    def largest_hole(self) -> int:
        """The longest run of free long words."""
        if self._largest is None:
            largest = end = 0
            for start, following, _ in self._blocks:
                largest = max(largest, start - end)
                end = following
            self._largest = max(largest, self.size - end)
        return self._largest

    def find(self, size: int, fit: Fit = "first") -> int | None:
        """Where a block of `size` would go; None where no hole is large enough."""
        size = self.rounded(size)
        if size > self.largest_hole:
            return None
        if fit == "last":
            return self._find_last(size)
        if fit == "best":
            return self._find_best(size)
        end = 0
        for start, following, _ in self._blocks:
            if start - end >= size:
                return end
            end = following
        return end if self.size - end >= size else None

    def _find_best(self, size: int) -> int | None:
        ends = [0, *(block.end for block in self._blocks)]
        starts = [*(block.start for block in self._blocks), self.size]
        holes = [(start - end, end) for start, end in zip(starts, ends) if start - end >= size]
        return min(holes)[1] if holes else None

    def _find_last(self, size: int) -> int | None:
        end = self.size
        for block in reversed(self._blocks):
            if end - block.end >= size:
                break
            end = block.start
        return end - size if end >= size else None

    def place(self, key: Hashable, size: int, start: int) -> None:
        """Puts a block where `find` said. Raises ValueError where it would overlap another or leave the memory."""
        size = self.rounded(size)
        block = Block(start, start + size, key)
        i = bisect.bisect_left(self._blocks, start, key=_start)
        before = self._blocks[i - 1].end if i else 0
        after = self._blocks[i].start if i < len(self._blocks) else self.size
        if start % self.granularity or start < before or block.end > after or key in self._starts:
            raise ValueError(f"block {block} overlaps another or lies outside of {self.size} long words")
        self._blocks.insert(i, block)
        self._starts[key] = start
        self.free -= size
        self._largest = None

    def release(self, key: Hashable) -> None:
        """Frees the block of `key`. Raises KeyError where it has none."""
        i = bisect.bisect_left(self._blocks, self._starts.pop(key), key=_start)
        block = self._blocks.pop(i)
        self.free += block.end - block.start
        self._largest = None

    def cheapest_window(self, size: int, weight: Callable[[Hashable], float]) -> tuple[float, list[Hashable]] | None:
        """The neighbours to evict so that a block of `size` fits, with the least sum of weights.

        A key of infinite weight stays. None where nothing can be evicted to make that room.
        """
        size = self.rounded(size)
        blocks = self._blocks
        weights = [weight(block.key) for block in blocks]
        best: tuple[float, int, int] | None = None
        last, total = 0, 0.0
        barred = 0  # how many of the window's blocks cannot go
        for first in range(len(blocks)):
            left = blocks[first - 1].end if first else 0
            while last < len(blocks) and (blocks[last].start - left < size):
                barred, total = _count(barred, total, weights[last], 1)
                last += 1
            right = blocks[last].start if last < len(blocks) else self.size
            if right - left < size:
                break
            if not barred and (best is None or total < best[0]):
                best = (total, first, last)
            barred, total = _count(barred, total, weights[first], -1) if last > first else (barred, total)
            last = max(last, first + 1)
        return None if best is None else (best[0], [block.key for block in blocks[best[1] : best[2]]])


def _start(block: Block) -> int:
    return block.start


def _count(barred: int, total: float, weight: float, sign: int) -> tuple[int, float]:
    return (barred + sign, total) if weight == float("inf") else (barred, total + sign * weight)


class Lifetime(NamedTuple):
    """A value that is live from step `begin` to step `end`, both included."""

    key: Hashable
    begin: int
    end: int
    size: int


def assign(lifetimes: Iterable[Lifetime], size: int, granularity: int = 1, fit: Fit = "first") -> dict[Hashable, int]:
    """An address for every lifetime, so that no two live values overlap.

    Raises MemoryError, naming the key, where one does not fit.
    """
    arena = Arena(size, granularity)
    result: dict[Hashable, int] = {}
    live: list[tuple[int, int, Hashable]] = []  # a heap by the last step
    for number, life in enumerate(sorted(lifetimes, key=lambda life: (life.begin, life.end))):
        while live and live[0][0] < life.begin:
            arena.release(heapq.heappop(live)[2])
        start = arena.find(life.size, fit)
        if start is None:
            raise MemoryError(life.key)
        arena.place(life.key, life.size, start)
        heapq.heappush(live, (life.end, number, life.key))
        result[life.key] = start
    return result


def assign_downward(lifetimes: Iterable[Lifetime], top: int, granularity: int = 1) -> dict[Hashable, int]:
    """As `assign`, from `top` towards 0: the first value ends at `top`, and all are aligned as seen from there."""
    lifetimes = list(lifetimes)
    room = Arena(top, granularity).rounded
    starts = assign(lifetimes, top, granularity)
    return {life.key: top - starts[life.key] - room(life.size) for life in lifetimes}


def assign_upward(
    sizes: Sequence[tuple[Hashable, int]], base: int, granularity: int
) -> tuple[dict[Hashable, int], int]:
    """Addresses one behind the other from `base`, without reuse; and the first free address."""
    result = {}
    for key, size in sizes:
        result[key] = base
        base += max(-(-size // granularity), 1) * granularity
    return result, base


def dram_size(placement: Placement, machine: Machine) -> int:
    """Long words that a value takes in each cell that has DRAM: its stored elements, copies left out, spread evenly."""
    memory = machine.memory(DRAM)
    long_words = -(-placement.layout.stored_elements() // machine.lanes(placement.dtype))
    return -(-long_words // machine.cells(memory.level))


def address_in_units(start: int, memory: Memory) -> int:
    """A long word's number as an address of that memory."""
    return start * memory.units_per_long_word
