"""Simulated memories: cells of float64 numbers, with a record of which value owns which addresses.

An element of a dtype with fewer lanes than the widest has the first cell of its lanes, so that a memory holds numbers,
not bits: that is what lets the emulator run without rounding. An integer is the cell's 64 bits: none is rounded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pfvm.compiler.plan.addresses import dram_size
from pfvm.compiler.plan.layout import TIME, Layout
from pfvm.compiler.plan.machine import Machine, Memory
from pfvm.compiler.plan.placement import DRAM, Placement

from .cells import dense_order
from .errors import AddressError, CopiesError, OverwrittenError, UnwrittenError

Array = np.ndarray

_POISON_BITS = 0x7FF8_0000_DEAD_0000
POISON = float(np.array(_POISON_BITS, np.int64).view(np.float64))
_PAGE = 4096  # long words


@dataclass
class Record:
    """Long words [start, end) that a value owns, and who wrote over them."""

    value: str
    start: int
    end: int
    layout: Layout
    dtype: str
    overwritten: str | None = None


class Owners:
    """Which value owns which long words of a memory."""

    def __init__(self, memory: str) -> None:
        self._memory = memory
        self._live: list[Record] = []
        self._by_value: dict[str, Record] = {}

    def write(self, record: Record, writer: str) -> None:
        """A value takes its long words; others that had some of them are lost."""
        kept = []
        for other in self._live:
            if other.start < record.end and record.start < other.end:
                if other.value != record.value:
                    other.overwritten = f"{record.value!r} ({writer})"
            else:
                kept.append(other)
        kept.append(record)
        self._live = kept
        self._by_value[record.value] = record

    def read(self, record: Record, reader: str) -> None:
        """Raises UnwrittenError and OverwrittenError unless the value stands where and as `record` says."""
        where = f"{self._memory} long words {record.start}…{record.end - 1}"
        found = self._by_value.get(record.value)
        if found is None:
            raise UnwrittenError(f"{reader} reads {record.value!r} from {where}, where it was never written")
        if found.overwritten is not None:
            raise OverwrittenError(
                f"{reader} reads {record.value!r} from {where}, but {found.overwritten} was written over it"
            )
        if (found.start, found.end) != (record.start, record.end):
            raise AddressError(
                f"{reader} reads {record.value!r} from {where}, but it was written to {found.start}…{found.end - 1}"
            )
        if found.dtype != record.dtype or not (found.layout is record.layout or found.layout == record.layout):
            raise UnwrittenError(
                f"{reader} reads {record.value!r} as {record.dtype} in layout {record.layout}, "
                f"but it was written as {found.dtype} in layout {found.layout}"
            )

    def forget(self) -> None:
        """Nothing is written."""
        self._live.clear()
        self._by_value.clear()


class Region:
    """One value in one memory. `load` gives its padded tensor as float64, `store` takes it.

    owner: the region of the value whose memory this one names again (a reshape), itself for all others.
    """

    def __init__(self, value: str, placement: Placement, start: int, length: int, owner: Region | None) -> None:
        self.value = value
        self.placement = placement
        self.layout = placement.layout
        self.owner = owner or self
        self.record = Record(value, start, start + length, placement.layout, placement.dtype)

    def load(self, reader: str) -> Array:
        """The padded tensor, a new or read-only array. Raises EmulatorError."""
        raise NotImplementedError

    def store(self, padded: Array, writer: str) -> None:
        """Writes the padded tensor with all its copies."""
        raise NotImplementedError


class DerivedRegion(Region):
    """A value that is put together from others where they lie: nothing of its own is written."""

    def __init__(self, value: str, placement: Placement, start: int, elements: Callable[[str], Array]) -> None:
        super().__init__(value, placement, start, 0, None)
        self._elements = elements

    def load(self, reader: str) -> Array:
        padded = np.full(self.layout.padded_shape, POISON)
        padded[self.layout.valid()] = as_cells(self._elements(reader))
        return padded


class LocalMemory:
    """One of the memories of the innermost cells: [long words, *index levels, lanes], low addresses side by side.

    with_copies: copies are written, and compared when they are read; else only the first one is kept.
    """

    def __init__(self, machine: Machine, memory: Memory) -> None:
        self.machine, self.memory = machine, memory
        self.lanes = max(dtype.lanes for dtype in machine.dtypes.values())
        self.levels = machine.index_levels
        self.cells = np.zeros((memory.size, *self.levels.values(), self.lanes))
        self.owners = Owners(memory.name)
        self.with_copies = True

    def region(self, value: str, placement: Placement, owner: Region | None) -> Region:
        """A value's region. Raises AddressError."""
        start = long_word(value, placement, self.memory)
        length = placement.layout.num_lw(self.memory.granularity)
        _check_range(value, start, length, self.memory)
        return _LocalRegion(self, value, placement, start, length, owner)


class _LocalRegion(Region):
    def __init__(
        self, memory: LocalMemory, value: str, placement: Placement, start: int, length: int, owner: Region | None
    ) -> None:
        super().__init__(value, placement, start, length, owner)
        if any(sub.level == TIME for sub in self.layout.subaxes):
            raise AddressError(f"{value!r} is sliced over time and cannot be in {memory.memory.name} as a whole")
        self._memory = memory
        step = memory.lanes // memory.machine.lanes(placement.dtype)
        block = memory.cells[start : start + length, ..., ::step]
        self._view = self.layout.view(block, memory.levels)
        self._copies = len(self.layout.copies)
        first: Any = (..., *(0,) * self._copies)
        self._first = self._view[first]

    def load(self, reader: str) -> Array:
        self._memory.owners.read(self.owner.record, reader)
        if self._copies and self._memory.with_copies:
            self._check_copies(reader)
        return self._first.reshape(self.layout.padded_shape)

    def store(self, padded: Array, writer: str) -> None:
        self._memory.owners.write(dataclasses.replace(self.record), writer)
        if self._copies and self._memory.with_copies:
            self._view[...] = padded.reshape(self._first.shape + (1,) * self._copies)
        else:
            self._first[...] = padded.reshape(self._first.shape)

    def _check_copies(self, reader: str) -> None:
        bits = self._view.view(np.int64)  # poison is no number that equals itself
        first = self._first.view(np.int64).reshape(self._first.shape + (1,) * self._copies)
        if not (bits == first).all():
            raise CopiesError(
                f"{reader} reads {self.value!r} from {self._memory.memory.name}: its copies in layout {self.layout} "
                "are not equal"
            )


class Dram:
    """The memory outside, shared out to the cells of its level: pages of [cells, long words, lanes], made when written.

    A value has its elements there once, without copies, in dense long words spread evenly over the cells.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine, self.memory = machine, machine.memory(DRAM)
        self.lanes = max(dtype.lanes for dtype in machine.dtypes.values())
        self.shares = machine.cells(self.memory.level)
        self.pages: dict[int, Array] = {}
        self.owners = Owners(self.memory.name)

    def region(self, value: str, placement: Placement, owner: Region | None) -> Region:
        """A value's region. Raises AddressError."""
        start = long_word(value, placement, self.memory)
        length = dram_size(placement, self.machine)
        _check_range(value, start, length, self.memory)
        return DramRegion(self, value, placement, start, length, owner)

    def pieces(self, start: int, end: int) -> Iterator[tuple[Array, slice, slice]]:
        """The parts of pages that are long words [start, end): page, long words in it, long words of the range."""
        at = start
        while at < end:
            number, offset = divmod(at, _PAGE)
            taken = min(_PAGE - offset, end - at)
            if number not in self.pages:
                self.pages[number] = np.zeros((self.shares, _PAGE, self.lanes))
            yield self.pages[number], slice(offset, offset + taken), slice(at - start, at - start + taken)
            at += taken


class DramRegion(Region):
    def __init__(
        self, memory: Dram, value: str, placement: Placement, start: int, length: int, owner: Region | None
    ) -> None:
        super().__init__(value, placement, start, length, owner)
        self._memory = memory
        self._lanes = memory.machine.lanes(placement.dtype)
        self._step = memory.lanes // self._lanes
        self._sizes = [sub.size for sub in self.layout.subaxes]
        self._order = dense_order(self.layout, memory.machine.index_levels)
        self._ordered = [self._sizes[i] for i in self._order]
        self._back = list(np.argsort(self._order)) if self._order else []
        self._elements = math.prod(self._sizes)
        self._length = length

    def load(self, reader: str) -> Array:
        self._memory.owners.read(self.owner.record, reader)
        flat = self.image().reshape(-1)[: self._elements]
        return flat.reshape(self._ordered).transpose(self._back).reshape(self.layout.padded_shape)

    def store(self, padded: Array, writer: str) -> None:
        image = np.zeros((self._memory.shares, self._length, self._lanes))
        ordered = padded.reshape(self._sizes).transpose(self._order)
        image.reshape(-1)[: self._elements] = ordered.reshape(-1)
        self._set(image)
        self._memory.owners.write(dataclasses.replace(self.record), writer)

    def image(self) -> Array:
        """What stands in its long words, whoever wrote it: [cells, long words, lanes], a copy."""
        image = np.empty((self._memory.shares, self._length, self._lanes))
        start = self.owner.record.start
        for page, inside, here in self._memory.pieces(start, start + self._length):
            image[:, here] = page[:, inside, :: self._step]
        return image

    def set_image(self, image: Array) -> None:
        """Puts back what `image` gave."""
        self._set(image)
        self._memory.owners.write(dataclasses.replace(self.record), "the host")

    def _set(self, image: Array) -> None:
        start = self.owner.record.start
        for page, inside, here in self._memory.pieces(start, start + self._length):
            page[:, inside, :: self._step] = image[:, here]

    def take_over(self, other: DramRegion) -> None:
        """This value is now what `other` holds, in the same long words; the two regions change places."""
        mine, theirs = self.record, other.record
        self.record = dataclasses.replace(mine, start=theirs.start, end=theirs.end)
        other.record = dataclasses.replace(theirs, start=mine.start, end=mine.end)
        self._memory.owners.write(dataclasses.replace(self.record), "the call before")


def as_cells(x: Array) -> Array:
    """What the cells hold of numbers: float64, which of an integer are its bits (as int64, or as uint64)."""
    return x.view(np.float64) if x.dtype.kind in "iu" else np.asarray(x, np.float64)


def is_poison(x: Array) -> Array:
    """Where an array of float64 holds the poison of padding that nobody set; one integer of 2^64 looks like it."""
    return np.asarray(x, order="C").view(np.int64) == _POISON_BITS


def long_word(value: str, placement: Placement, memory: Memory) -> int:
    """The long word at which a value starts. Raises AddressError."""
    if placement.address is None:
        raise AddressError(f"{value!r} is in {memory.name} but has no address: the plan is not scheduled")
    unit = memory.units_per_long_word * memory.granularity
    bases = {0, (memory.spill_top or 0) * memory.units_per_long_word % unit}  # spilled values count from the top
    if placement.address % unit not in bases:
        raise AddressError(f"{value!r}: address {placement.address} of {memory.name} is no multiple of {unit}")
    return placement.address // memory.units_per_long_word


def _check_range(value: str, start: int, length: int, memory: Memory) -> None:
    if start < 0 or start + length > memory.size:
        raise AddressError(
            f"{value!r}: long words {start}…{start + length - 1} are not all in {memory.name}, which has {memory.size}"
        )
