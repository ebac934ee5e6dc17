"""The scheduling problem of a laid-out MNGraph, in numbers: what every search and simulation works on.

A buffer is one piece of memory: a value and the views of it that reuse nodes name (a reshape). An op is a node that
runs. Constants inside the program (IMM) need no memory, and reuse nodes no time: both are left out.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """size: long words in a local memory. Costs in cycles.

    stored: it is in DRAM from the start. kept: it must be in DRAM at the end (a graph output).
    """

    size: int
    stored: bool
    kept: bool
    download: float
    upload: float
    copy: float  # from one local memory to another


@dataclass(frozen=True, slots=True)
class Op:
    """One node. Fields name buffers by their number.

    reads: operands in a local memory. streams: operands read from DRAM. writes: results, in a local memory. stores:
    results in DRAM (slices put together, a value re-laid that fits no local memory). moves: it goes through an upper
    memory, so that it may write the memory that it reads. repeatable: running it again gives the same.
    """

    reads: tuple[int, ...]
    streams: tuple[int, ...]
    writes: tuple[int, ...]
    stores: tuple[int, ...] = ()
    cycles: float = 0.0
    moves: bool = False
    repeatable: bool = True


@dataclass(frozen=True)
class Problem:
    """Ops in a topological order, buffers, and the local memories: their sizes in long words, and which cannot be read
    and written by one instruction."""

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    memories: tuple[int, ...]
    exclusive: tuple[bool, ...]
    granularity: int = 1

    @functools.cached_property
    def moving_pairs(self) -> tuple[tuple[int, int], ...]:
        """(read, written) memories of an op that moves: any; the same one is preferred."""
        every = range(len(self.memories))
        return tuple((a, b) for a in every for b in sorted(every, key=lambda b: b != a))

    @functools.cached_property
    def computing_pairs(self) -> tuple[tuple[int, int], ...]:
        """(read, written) memories of an op that computes: another one where the memory read is exclusive."""
        if len(self.memories) == 1:
            return ((0, 0),)
        return tuple((a, b) for a, b in self.moving_pairs if a != b or not self.exclusive[a])

    @functools.cached_property
    def producer(self) -> dict[int, int]:
        """Buffer → the op that makes it."""
        return {b: i for i, op in enumerate(self.ops) for b in (*op.writes, *op.stores)}

    @functools.cached_property
    def consumers(self) -> dict[int, list[int]]:
        """Buffer → the ops that read it, in order."""
        result: dict[int, list[int]] = {b: [] for b in range(len(self.buffers))}
        for i, op in enumerate(self.ops):
            for b in dict.fromkeys((*op.reads, *op.streams)):
                result[b].append(i)
        return result

    @functools.cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For every op those whose results it reads."""
        made = self.producer
        return tuple(tuple(dict.fromkeys(made[b] for b in (*op.reads, *op.streams) if b in made)) for op in self.ops)

    @functools.cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For every op those that read its results."""
        result: list[list[int]] = [[] for _ in self.ops]
        for i, before in enumerate(self.predecessors):
            for j in before:
                result[j].append(i)
        return tuple(map(tuple, result))

    def compulsory_cycles(self) -> float:
        """What no schedule can avoid: every op once, every stored operand loaded once, every output stored once."""
        loaded = {b for op in self.ops for b in op.reads if self.buffers[b].stored}
        total = sum(op.cycles for op in self.ops) + sum(self.buffers[b].download for b in loaded)
        return total + sum(self.buffers[b].upload for b in self.uploaded)

    @functools.cached_property
    def uploaded(self) -> frozenset[int]:
        """The buffers that every schedule stores: outputs, and what is read from DRAM once it is computed."""
        streamed = {b for op in self.ops for b in op.streams}
        return frozenset(
            b
            for b, buffer in enumerate(self.buffers)
            if not buffer.stored and (buffer.kept or b in streamed) and not self._stored_by_op(b)
        )

    def _stored_by_op(self, buffer: int) -> bool:
        maker = self.producer.get(buffer)
        return maker is not None and buffer in self.ops[maker].stores
