"""DRAM addresses of a schedule: inputs by name, initializers by first use, outputs behind them, spills from the top.

A graph output that updates an input (metadata STATE) has that input's address, unless something still reads the old
value after the new one is stored: then it has its own, and the two change places from one call to the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import onnx_ir as ir
from pfvm.compiler.plan.addresses import Lifetime, assign_downward, assign_upward, dram_size
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.placement import DRAM, placement_of
from pfvm.compiler.plan.state import STATE
from pfvm.errors import UnsupportedOpError

from .reading import Reading
from .simulation import Step


def plan_dram(model: ir.Model, machine: Machine, reading: Reading, steps: list[Step]) -> dict[int, int]:
    """Long word, in each cell that has DRAM, of every buffer ever there. Raises UnsupportedOpError where it is full."""
    return _Dram(model, machine, reading, steps).plan()


class _Dram:
    def __init__(self, model: ir.Model, machine: Machine, reading: Reading, steps: list[Step]) -> None:
        self.model, self.machine, self.reading = model, machine, reading
        self.memory = machine.memory(DRAM)
        self.stored_at: dict[int, int] = {}
        self.first_read: dict[int, int] = {}
        self.last_read: dict[int, int] = {}
        for time, step in enumerate(steps):
            for b in self._stored(step):
                self.stored_at.setdefault(b, time)
            for b in self._read(step):
                self.first_read.setdefault(b, time)
                self.last_read[b] = time
        self.slices = {
            op.stores[0]: op.streams for op in reading.problem.ops if op.stores
        }  # a whole → its slices, in order
        self.whole = {part: whole for whole, parts in self.slices.items() for part in parts}

    def _stored(self, step: Step) -> Iterator[int]:
        if step.kind == "upload":
            yield step.subject
        elif step.kind == "run":
            yield from self.reading.problem.ops[step.subject].stores

    def _read(self, step: Step) -> Iterator[int]:
        if step.kind == "download":
            split = self.reading.splits.get(step.subject)
            if split is None:
                yield step.subject
            elif split.inputs[0] is not None:
                yield self.reading.buffer_of[split.inputs[0]]
        elif step.kind == "run":
            yield from self.reading.problem.ops[step.subject].streams

    def plan(self) -> dict[int, int]:
        fixed, end = assign_upward(
            [(b, self._size(b)) for b in (*self._inputs(), *self._initializers())], 0, self.memory.granularity
        )
        own = [b for b in self._kept() if b not in fixed and not self._in_place(b, fixed)]
        outputs, end = assign_upward([(b, self._size(b)) for b in own], end, self.memory.granularity)
        fixed.update(outputs)
        spills = self._spills(fixed)
        lowest = min((start for start in spills.values()), default=self.memory.size)
        if end > lowest:
            needed = end + self.memory.size - lowest
            raise UnsupportedOpError(
                f"the model needs {needed} long words of DRAM per {self.memory.level}, {self.machine.name} has "
                f"{self.memory.size}; a smaller batch or smaller weights would fit"
            )
        addresses: dict[int, int] = {}
        for b, start in {**fixed, **spills}.items():
            assert isinstance(b, int)
            addresses[b] = start
            addresses.update(self._parts(b, start))
        return addresses

    # ---- who is where

    def _inputs(self) -> list[int]:
        graph = self.model.graph
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        return self._buffers(sorted(inputs, key=lambda value: value.name or ""))

    def _initializers(self) -> list[int]:
        """By first use; those that the schedule never reads behind them, in the model's order."""
        found = self._buffers(self.model.graph.initializers.values())
        return sorted(found, key=lambda b: self.first_read.get(b, len(self.stored_at) + (1 << 40)))

    def _kept(self) -> list[int]:
        return list(dict.fromkeys(self._buffers(self.model.graph.outputs)))

    def _buffers(self, values: object) -> list[int]:
        return [self.reading.buffer_of[value] for value in values if value in self.reading.buffer_of]  # type: ignore[attr-defined]

    def _in_place(self, buffer: int, fixed: dict[Hashable, int]) -> bool:
        """Gives an output the address of the input that it updates, where nothing reads the old value later."""
        inputs = {value.name: value for value in self.model.graph.inputs}
        for out in self.model.graph.outputs:
            state = inputs.get(out.metadata_props.get(STATE))
            if state is None or self.reading.buffer_of.get(out) != buffer:
                continue
            old = self.reading.buffer_of[state]
            first = min(self.stored_at[each] for each in (buffer, *self.slices.get(buffer, ())))
            if self._rounded(old) == self._rounded(buffer) and self.last_read.get(old, -1) <= first:
                fixed[buffer] = fixed[old]
                return True
        return False

    def _spills(self, fixed: dict[Hashable, int]) -> dict[Hashable, int]:
        lives = []
        for b, begin in self.stored_at.items():
            if b in fixed or b in self.whole or (self.reading.problem.buffers[b].stored and b not in self.slices):
                continue
            parts = self.slices.get(b, ())
            begins = [begin, *(self.stored_at[part] for part in parts)]
            ends = [self.last_read.get(each, begin) for each in (b, *parts)]
            lives.append(Lifetime(b, min(begins), max(ends), self._size(b)))
        top = self.memory.spill_top or self.memory.size
        return assign_downward(lives, top, self.memory.granularity)

    def _size(self, buffer: int) -> int:
        """A whole that is put together from slices has them one behind the other."""
        parts = self.slices.get(buffer)
        if parts:
            return sum(map(self._rounded, parts))
        return dram_size(placement_of(self.reading.roots[buffer]), self.machine)

    def _rounded(self, buffer: int) -> int:
        size, unit = self._size(buffer), self.memory.granularity
        return -(-size // unit) * unit

    def _parts(self, whole: int, start: int) -> dict[int, int]:
        result = {}
        for part in self.slices.get(whole, ()):
            result[part] = start
            start += self._rounded(part)
        return result
