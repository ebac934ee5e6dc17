"""When each node of a scheduled graph runs: one after the other, or with transfers from DRAM ahead of compute.

With prefetch a Download or InputSplit starts as soon as the paths that it takes are free, what it reads is in DRAM, and
no earlier node still uses the addresses that it writes; all other nodes keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .cost import CostModel
from .mngraph import DOWNLOAD, INPUT_SPLIT, is_move
from .placement import DRAM, IMMEDIATE, find_placement
from .tree import Cost


@dataclass(frozen=True)
class Span:
    """One node's time, in cycles from the start of the program."""

    node: ir.Node
    start: int
    end: int
    cost: Cost


def timeline(model: ir.Model, costs: CostModel, prefetch: bool = False) -> list[Span]:
    """The spans of all nodes, in the graph's order."""
    if prefetch:
        return _Overlapped(costs).run(list(model.graph))
    spans, now = [], 0
    for node in model.graph:
        cost = costs.node(node)
        spans.append(Span(node, now, now + cost.cycles, cost))
        now += cost.cycles
    return spans


def length(spans: Sequence[Span]) -> int:
    """Cycles of the whole program."""
    return max((span.end for span in spans), default=0)


@dataclass
class _Use:
    """Addresses of a memory that were used until a time."""

    memory: str
    start: int
    end: int
    until: int


class _Overlapped:
    """Two streams of nodes, transfers from DRAM and the rest, that wait for each other's memory and paths."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self.granularity = costs.machine.local_memories[0].granularity
        self.free: dict[str, int] = {}  # resource → when it is free
        self.ready: dict[ir.Value, int] = {}
        self.streams = {True: 0, False: 0}
        self.uses: list[_Use] = []

    def run(self, nodes: Sequence[ir.Node]) -> list[Span]:
        return [self._place(node) for node in nodes]

    def _place(self, node: ir.Node) -> Span:
        cost = self.costs.node(node)
        ahead = is_move(node) and node.op_type in (DOWNLOAD, INPUT_SPLIT)
        resources = cost.by_resource()
        waits = [self.ready.get(value, 0) for value in node.inputs if value is not None]
        waits += [self.free.get(name, 0) for name in resources]
        writes = [use for out in node.outputs if (use := self._use(out))]
        if cost.busy:
            waits += [old.until for old in self.uses if any(_meet(old, use) for use in writes)]
        start = max([self.streams[ahead] if cost.busy else 0, *waits])
        end = start + cost.cycles
        if cost.busy:
            self.streams[ahead] = end
        for name, busy in resources.items():
            self.free[name] = start + busy
        for out in node.outputs:
            self.ready[out] = end
        self._remember(
            [*writes, *(use for value in node.inputs if value is not None and (use := self._use(value)))], end
        )
        return Span(node, start, end, cost)

    def _use(self, value: ir.Value) -> _Use | None:
        placement = find_placement(value)
        if placement is None or placement.address is None or placement.location in (None, DRAM, IMMEDIATE):
            return None
        memory = self.costs.machine.memory(placement.location)
        size = placement.layout.num_lw(self.granularity) * memory.units_per_long_word
        return _Use(memory.name, placement.address, placement.address + size, 0)

    def _remember(self, uses: list[_Use], until: int) -> None:
        for use in uses:
            use.until = until
        covered = [old for old in self.uses if any(_covers(use, old) for use in uses)]
        if covered:
            gone = {id(old) for old in covered}
            self.uses = [old for old in self.uses if id(old) not in gone]
        self.uses += uses


def _meet(a: _Use, b: _Use) -> bool:
    return a.memory == b.memory and a.start < b.end and b.start < a.end


def _covers(new: _Use, old: _Use) -> bool:
    inside = new.memory == old.memory and new.start <= old.start and old.end <= new.end
    return inside and new.until >= old.until
