"""The values of a plan in the emulator: where each lies, and how its tensor is cut from and put into its padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE, Placement, placement_of
from pfvm.errors import InvalidModelError

from .errors import AddressError, PaddingError, UnwrittenError
from .memory import POISON, Dram, LocalMemory, Region, as_cells, is_poison

Array = np.ndarray


class Memories:
    """All memories of a machine that values may be in, and the regions of a graph's values."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dram = Dram(machine)
        self.local = {memory.name: LocalMemory(machine, memory) for memory in machine.local_memories}
        self._levels = machine.index_levels

    def begin(self, with_copies: bool) -> None:
        """The local memories as a program finds them: nothing of it is there."""
        for memory in self.local.values():
            memory.owners.forget()
            memory.with_copies = with_copies

    def region(self, value: ir.Value, owner: Region | None = None) -> Region | None:
        """The region of a value; None for a constant inside the program. Raises AddressError, InvalidModelError."""
        placement = placement_of(value)
        name = value.name or ""
        if placement.location == IMMEDIATE:
            return None
        if placement.location == DRAM:
            return self.dram.region(name, placement, owner)
        memory = self.local.get(placement.location or "")
        if memory is None:
            known = ", ".join([DRAM, IMMEDIATE, *self.local])
            raise AddressError(f"{name!r} is in {placement.location!r}; machine {self.machine.name} has {known}")
        return memory.region(name, placement, owner)


class PlacedValue:
    """One value: its placement and, unless it is a constant inside the program, its region."""

    def __init__(self, value: ir.Value, region: Region | None, machine: Machine, constant: Array | None = None) -> None:
        self.value = value
        self.name = value.name or ""
        self.placement: Placement = placement_of(value)
        self.layout: Layout = self.placement.layout
        self.region = region
        self.constant = constant
        self.shape = self.layout.shape
        self._valid = self.layout.valid()
        self._is_padded = self.layout.is_padded
        self._pad = pad_number(self.placement, machine)
        self._kind = _kind(value)
        if value.shape is not None and tuple(value.shape) != self.shape:
            raise InvalidModelError(f"{self.name!r} has shape {value.shape} and layout {self.layout}")

    def padded(self, reader: str) -> Array:
        """The whole padded tensor, as cells hold it. Raises EmulatorError."""
        if self.region is None:
            assert self.constant is not None
            return self._filled(self.constant)
        return self.region.load(reader)

    def load(self, reader: str) -> Array:
        """The value's elements: float64, int64, uint64 or bool, in one piece of memory. Raises EmulatorError."""
        if self.constant is not None:
            return self.constant
        return self.typed(self.cropped(self.padded(reader), reader))

    def cropped(self, padded: Array, reader: str) -> Array:
        """Without padding. Raises UnwrittenError where an element itself is poison."""
        valid = np.asarray(padded[self._valid], order="C")
        if np.isnan(valid).any() and is_poison(valid).any():
            raise UnwrittenError(f"{reader} reads elements of {self.name!r} that nobody set")
        return valid

    def typed(self, x: Array) -> Array:
        """Cells as the kernels take the value's type."""
        if self._kind == "b":
            return x != 0
        if self.value.dtype == ir.DataType.UINT64:
            return x.view(np.uint64)
        return self._numbers(x)

    def cells(self, x: Array) -> Array:
        """Numbers of the value, as cells hold them."""
        if self._kind != "i":
            return np.asarray(x, np.float64)
        return as_cells(x if x.dtype.kind in "iu" else x.astype(np.int64))

    def _numbers(self, cells: Array) -> Array:
        return cells.view(np.int64) if self._kind == "i" else cells

    def store(self, elements: Array, writer: str) -> None:
        """The elements, with the padding that the plan promises or else poison."""
        assert self.region is not None
        self.region.store(self._filled(elements), writer)

    def store_padded(self, padded: Array, writer: str) -> None:
        """A tensor whose padding was computed. Raises PaddingError where that is not what the plan promises."""
        assert self.region is not None
        if self._is_padded and self._pad is None:
            padded = self._poisoned(padded)
        elif self._is_padded:
            self._check_promise(padded, writer)
        self.region.store(padded, writer)

    def check_padding(self, padded: Array, axes: Sequence[int], number: float, reader: str) -> None:
        """Raises PaddingError unless the padding behind these axes holds a number."""
        for axis in axes:
            if self.layout.padded_shape[axis] == self.shape[axis]:
                continue
            behind = list(self._valid)
            behind[axis] = slice(self.shape[axis], None)
            found = padded[tuple(behind)]
            wrong = found[self._numbers(found) != number].reshape(-1)[:1]
            if wrong.size:
                what = "what nobody set" if is_poison(wrong).all() else f"{self._numbers(wrong)[0]:g}"
                raise PaddingError(
                    f"{reader} reads the padding behind axis {axis} of {self.name!r}: it needs {number:g} there and "
                    f"finds {what} (pad {self.placement.pad}, {self.shape} in {self.layout.padded_shape})"
                )

    def _filled(self, elements: Array) -> Array:
        cells = self.cells(elements)
        if not self._is_padded:
            return cells.reshape(self.layout.padded_shape)
        padded = self.filling(self._pad)
        padded[self._valid] = cells
        return padded

    def filling(self, number: float | None) -> Array:
        """Cells of the padded shape that all hold a number, or poison."""
        filling = POISON if number is None else self.cells(np.array(number))
        return np.full(self.layout.padded_shape, filling)

    def _poisoned(self, padded: Array) -> Array:
        result = np.full(self.layout.padded_shape, POISON)
        result[self._valid] = padded[self._valid]
        return result

    def _check_promise(self, padded: Array, writer: str) -> None:
        assert self._pad is not None
        for axis, (size, room) in enumerate(zip(self.shape, self.layout.padded_shape)):
            behind = padded[(slice(None),) * axis + (slice(size, room),)]
            if not (self._numbers(behind) == self._pad).all():
                raise PaddingError(
                    f"{writer} writes {self.name!r}, whose padding the plan calls {self.placement.pad}; "
                    f"behind axis {axis} it is something else"
                )


def pad_number(placement: Placement, machine: Machine) -> float | None:
    """The number that a value's padding is said to hold; None where it may be anything."""
    if placement.pad in (None, "Dirty"):
        return None
    return number_of(placement.pad, placement.dtype, machine)


def number_of(pad: str, dtype: str, machine: Machine) -> float:
    """The number behind a word for padding. Lowest and Highest of an integer are those of its share of a long word."""
    if pad in ("Zero", "One"):
        return float(pad == "One")
    bits = machine.long_word_bits // machine.lanes(dtype)
    if machine.dtypes[dtype].is_float:
        return float("-inf") if pad == "Lowest" else float("inf")
    return -(2.0 ** (bits - 1)) if pad == "Lowest" else 2.0 ** (bits - 1) - 1


def _kind(value: ir.Value) -> str:
    if value.dtype is None:
        raise InvalidModelError(f"value {value.name!r} has no type")
    if value.dtype == ir.DataType.BOOL:
        return "b"
    return "i" if value.dtype.is_integer() else "f"
