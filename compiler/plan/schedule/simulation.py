"""Runs a sequence of ops through the local memories and writes down every step: the one model that all schedulers use.

The sequence may name an op again: it is then computed again. The simulation fetches operands, chooses the memories,
makes room, and asks the policy what stays afterwards. A block that has to go is moved to another local memory where
that is cheaper, stored first where nothing else has it, or simply dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

from pfvm.compiler.plan.addresses import Arena, Fit

from .problem import Op, Problem

NEVER = 1 << 60
_INFINITE = float("inf")


class Step(NamedTuple):
    """run: op `subject`, reading `memory`, writing `target`. download: into `memory`. upload: from `memory`.

    copy: from `memory` to `target`. drop: from `memory`. addresses: the long words where what it wrote now begins, one
    for each result of an op.
    """

    kind: Literal["run", "download", "upload", "copy", "drop"]
    subject: int
    memory: int = 0
    target: int = 0
    addresses: tuple[int, ...] = ()


class Unschedulable(Exception):
    """A sequence that cannot run: an operand that is not there yet, or an op that does not fit. Carries op, buffer."""

    def __init__(self, op: int, buffer: int, fits: bool = True) -> None:
        super().__init__(f"op {op}, buffer {buffer}")
        self.op, self.buffer, self.fits = op, buffer, fits


class Policy(NamedTuple):
    """after(simulation, next op): what leaves the local memories after a node. relocate: a block that must make
    room may move to another local memory. distance: the power of the time to the next use in a victim's weight. sorted:
    what is read after the next op goes to the far end of its memory, so that short lives leave no holes between long
    ones."""

    after: Callable[[Simulation, Op | None], None]
    relocate: bool = False
    distance: float = 1.0
    sorted: bool = False


class Simulation:
    """One run. After `run`: `cycles` and `steps`.

    bias: buffer → factor of its weight as a victim; what is below 1 goes earlier. excess: the cycles so far that a
    schedule of this sequence could do without (second downloads, spills, copies).
    """

    def __init__(
        self, problem: Problem, sequence: Sequence[int], policy: Policy, bias: Mapping[int, float] | None = None
    ) -> None:
        self.problem, self.sequence, self.policy = problem, sequence, policy
        self.bias = bias or {}
        self.arenas = [Arena(size, problem.granularity) for size in problem.memories]
        self.where: list[dict[int, int]] = [{} for _ in problem.buffers]  # memory → long word
        self.stored = [buffer.stored for buffer in problem.buffers]
        self.next_use = [NEVER] * len(problem.buffers)
        self.position = 0
        self.cycles = self.excess = 0.0
        self.loaded = [False] * len(problem.buffers)  # once, from DRAM
        self.steps: list[Step] = []
        self.after = self._uses()

    def run(self) -> Simulation:
        """Runs the whole sequence. Raises Unschedulable."""
        for position in range(len(self.sequence)):
            self.run_at(position)
        return self

    def run_at(self, position: int) -> None:
        """Runs the op at a position, once all before it have run. Raises Unschedulable."""
        ops, index = self.problem.ops, self.sequence[position]
        self.position = position
        self._run_op(index, ops[index])
        for b, later, _ in self.after[position]:
            self.next_use[b] = later
            if later == NEVER:
                self._end(b)
        following = self.sequence[position + 1] if position + 1 < len(self.sequence) else None
        self.policy.after(self, None if following is None else ops[following])

    def _uses(self) -> list[list[tuple[int, int, bool]]]:
        """For every position the buffers it touches, each with its next read before it is made anew, and whether one of
        these reads is after the next op."""
        later = [NEVER] * len(self.problem.buffers)
        last = [NEVER] * len(self.problem.buffers)
        result: list[list[tuple[int, int, bool]]] = []
        for position in range(len(self.sequence) - 1, -1, -1):
            op = self.problem.ops[self.sequence[position]]
            touched = dict.fromkeys((*op.reads, *op.streams, *op.writes, *op.stores))
            result.append([(b, later[b], position + 1 < last[b] < NEVER) for b in touched])
            for b in op.writes:
                later[b] = last[b] = NEVER
            for b in (*op.reads, *op.streams):
                last[b] = position if later[b] == NEVER else last[b]
                later[b] = position
        result.reverse()
        return result

    # ---- one op

    def _run_op(self, index: int, op: Op) -> None:
        for b in op.streams:
            self._need(index, b)
            self.store(b)
        for b in op.reads:
            self._need(index, b)
        for b in op.writes:
            self.forget(b)
        memory, target = self._choose(op)
        if not self._gather(op, memory, target):
            self._clear({memory, target})
            if not self._gather(op, memory, target):
                raise Unschedulable(index, next(iter((*op.writes, *op.reads))), fits=False)
        for b in op.stores:
            self.stored[b] = True
        self.cycles += op.cycles
        addresses = tuple(self.where[b][target] for b in op.writes)
        self.steps.append(Step("run", index, memory, target, addresses))

    def _spend(self, cycles: float, compulsory: bool = False) -> None:
        self.cycles += cycles
        if not compulsory:
            self.excess += cycles

    def _need(self, index: int, buffer: int) -> None:
        if not self.where[buffer] and not self.stored[buffer]:
            raise Unschedulable(index, buffer)

    def _gather(self, op: Op, memory: int, target: int) -> bool:
        """Fetches the operands and makes room for the results; False where the room is in pieces."""
        pinned = set(op.reads)
        for b in op.reads:
            if memory not in self.where[b] and not self._fetch(b, memory, pinned):
                return False
        pinned.update(op.writes)
        for b in op.writes:
            address = self.where[b].get(target)
            if address is None:
                address = self._room(b, target, pinned if target == memory else op.writes)
            if address is None:
                return False
            self._put(b, target, address)
        return True

    def _fetch(self, buffer: int, memory: int, pinned: Collection[int]) -> bool:
        costs = self.problem.buffers[buffer]
        near = bool(self.where[buffer]) and not (self.stored[buffer] and costs.download < costs.copy)
        address = self._room(buffer, memory, pinned)
        if address is None:
            return False
        if near and self.where[buffer]:  # making room may have moved it
            source = min(self.where[buffer])
            self._spend(costs.copy)
            self.steps.append(Step("copy", buffer, source, memory, (address,)))
        else:
            self._spend(costs.download, compulsory=self.problem.buffers[buffer].stored and not self.loaded[buffer])
            self.loaded[buffer] = True
            self.steps.append(Step("download", buffer, memory, memory, (address,)))
        self._put(buffer, memory, address)
        return True

    # ---- the choice of memories

    def _choose(self, op: Op) -> tuple[int, int]:
        pairs = self.problem.moving_pairs if op.moves else self.problem.computing_pairs
        if len(pairs) == 1:
            return pairs[0]
        best, least = pairs[0], _INFINITE
        for memory, target in pairs:
            cost = self._cost_of(op, memory, target)
            if cost < least:
                best, least = (memory, target), cost
        return best

    def _cost_of(self, op: Op, memory: int, target: int) -> float:
        """Cycles to bring the operands, to make room, and to bring the results together with what reads them next."""
        cost, need = 0.0, 0
        for b in op.reads:
            if memory in self.where[b]:
                continue
            buffer = self.problem.buffers[b]
            need += buffer.size
            cost += (
                min(buffer.copy, buffer.download if self.stored[b] else _INFINITE) if self.where[b] else buffer.download
            )
        made = sum(self.problem.buffers[b].size for b in op.writes)
        if memory == target:
            need += made
        else:
            cost += self._pressure(target, made, ())
        return cost + self._pressure(memory, need, op.reads) + self._apart(op, target)

    def _pressure(self, memory: int, need: int, pinned: Collection[int]) -> float:
        """What it costs, at least, to free `need` long words."""
        arena = self.arenas[memory]
        missing = need - arena.free
        if missing <= 0:
            return 0.0
        prices = sorted(
            (self._price(block.key, memory) / (block.end - block.start), block.end - block.start)
            for block in arena
            if block.key not in pinned
        )
        cost = 0.0
        for price, size in prices:
            cost += price * min(size, missing)
            missing -= size
            if missing <= 0:
                return cost
        return _INFINITE if need > arena.size else cost + 1e12

    def _apart(self, op: Op, target: int) -> float:
        """Copies that the next reader of a result needs because another of its operands is elsewhere."""
        cost = 0.0
        buffers = self.problem.buffers
        for b, later, _ in self.after[self.position]:
            if b not in op.writes or later == NEVER:
                continue
            reader = self.problem.ops[self.sequence[later]]
            for other in reader.reads:
                places = self.where[other]
                if other != b and other not in op.writes and places and target not in places:
                    cost += min(buffers[other].copy, buffers[b].copy)
        return cost

    # ---- room

    def _room(self, buffer: int, memory: int, pinned: Collection[int]) -> int | None:
        """Where the buffer goes, after evicting what has to go; None where the room cannot be made in one piece."""
        size = self.problem.buffers[buffer].size
        arena = self.arenas[memory]
        fit: Fit = "last" if self.policy.sorted and self._is_far(buffer) else "first"
        address = arena.find(size, fit)
        if address is not None:
            return address
        window = arena.cheapest_window(size, lambda key: self._weight(key, memory, pinned))
        if window is None:
            return None
        for victim in window[1]:
            self.evict(victim, memory)  # type: ignore[arg-type]
        return arena.find(size, fit)

    def _is_far(self, buffer: int) -> bool:
        """Is the buffer read after the next op?"""
        return next((far for b, _, far in self.after[self.position] if b == buffer), False)

    def _weight(self, key: Hashable, memory: int, pinned: Collection[int]) -> float:
        b: int = key  # type: ignore[assignment]
        if b in pinned:
            return _INFINITE
        distance = max(self.next_use[b] - self.position, 1)
        return self._price(b, memory) / distance**self.policy.distance * self.bias.get(b, 1.0)

    def _price(self, key: Hashable, memory: int) -> float:
        """Cycles that it costs to have a block no more in this memory."""
        b: int = key  # type: ignore[assignment]
        buffer = self.problem.buffers[b]
        if len(self.where[b]) > 1:
            return 0.0
        again = buffer.download if self.next_use[b] != NEVER else 0.0
        price = again + (0.0 if self.stored[b] else buffer.upload)
        if self.policy.relocate and 2 * buffer.copy < price and self._other(b, memory) >= 0:
            return 2 * buffer.copy
        return price

    def _other(self, buffer: int, memory: int) -> int:
        """Another memory with a hole for the buffer; -1 where there is none."""
        size = self.problem.buffers[buffer].size
        for other, arena in enumerate(self.arenas):
            if other != memory and arena.largest_hole >= size:
                return other
        return -1

    def evict(self, buffer: int, memory: int) -> None:
        """Takes a block out of a memory; what it holds stays somewhere as long as it is needed."""
        costs = self.problem.buffers[buffer]
        if len(self.where[buffer]) == 1 and self.next_use[buffer] != NEVER:
            price = costs.download + (0.0 if self.stored[buffer] else costs.upload)
            target = self._other(buffer, memory) if self.policy.relocate and 2 * costs.copy < price else -1
            if target >= 0:
                self._spend(costs.copy)
                address = self.arenas[target].find(costs.size) or 0
                self.steps.append(Step("copy", buffer, memory, target, (address,)))
                self._put(buffer, target, address)
            else:
                self.store(buffer)
        self.drop(buffer, memory)

    def store(self, buffer: int) -> None:
        """Puts the buffer in DRAM unless it is there."""
        if not self.stored[buffer]:
            self.stored[buffer] = True
            self._spend(self.problem.buffers[buffer].upload, compulsory=buffer in self.problem.uploaded)
            self.steps.append(Step("upload", buffer, min(self.where[buffer])))

    def drop(self, buffer: int, memory: int) -> None:
        """Frees the buffer's block in one memory."""
        del self.where[buffer][memory]
        self.arenas[memory].release(buffer)
        self.steps.append(Step("drop", buffer, memory))

    def forget(self, buffer: int) -> None:
        """Frees the buffer in every local memory."""
        for memory in sorted(self.where[buffer]):
            self.drop(buffer, memory)

    def _end(self, buffer: int) -> None:
        """After the last read."""
        if self.problem.buffers[buffer].kept and self.where[buffer]:
            self.store(buffer)
        self.forget(buffer)

    def _clear(self, memories: set[int]) -> None:
        """Empties memories whose room is in pieces."""
        for b in range(len(self.where)):
            if not memories.isdisjoint(self.where[b]):
                if self.next_use[b] != NEVER or self._is_read_now(b):
                    self.store(b)
                self.forget(b)

    def _is_read_now(self, buffer: int) -> bool:
        return buffer in self.problem.ops[self.sequence[self.position]].reads

    def _put(self, buffer: int, memory: int, address: int) -> None:
        if memory not in self.where[buffer]:
            self.arenas[memory].place(buffer, self.problem.buffers[buffer].size, address)
            self.where[buffer][memory] = address
