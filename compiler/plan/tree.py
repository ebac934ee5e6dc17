"""The way between DRAM and the local memories: what a layout's words cost on every path, up and down.

A path's rate is in long words per cycle and cell of its level. How many words pass there depends on the mode: where
each child gets its own words, they are all counted; where one word reaches all children, only different ones are.
Among the modes that a machine has for a hop the cheapest is taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pfvm.errors import OptionError

from .layout import ADDRESS, LANE, TIME, Layout
from .machine import ALL, EACH, Machine, Path
from .placement import DRAM


@dataclass(frozen=True)
class Cost:
    """What something takes. busy: cycles by unit or path; words: long words moved by path, in the whole machine.

    Inside one node transfers and units are pipelined: its cycles are those of the busiest resource. `serial` is the
    other reading, one after the other.
    """

    busy: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)  # of paths: those of one resource cannot run at once

    def by_resource(self) -> dict[str, int]:
        """Busy cycles of every unit, and of every resource that paths share."""
        total: dict[str, int] = defaultdict(int)
        for name, cycles in self.busy.items():
            total[self.resources.get(name, name)] += cycles
        return dict(total)

    @functools.cached_property
    def cycles(self) -> int:
        """Pipelined: the busiest resource."""
        return max(self.by_resource().values(), default=0)

    @property
    def serial(self) -> int:
        """One after the other."""
        return sum(self.busy.values())

    def __add__(self, other: Cost) -> Cost:
        return Cost.sum((self, other))

    @classmethod
    def sum(cls, costs: Iterable[Cost]) -> Cost:
        """What all of them take together."""
        busy: dict[str, int] = {}
        words: dict[str, int] = {}
        resources: dict[str, str] = {}
        for cost in costs:
            for total, part in ((busy, cost.busy), (words, cost.words)):
                for name, figure in part.items():
                    total[name] = total.get(name, 0) + figure
            resources.update(cost.resources)
        return cls(busy, words, resources)


@dataclass(frozen=True)
class Hop:
    """One step of the way. levels: the index levels between its two memories. down, up: paths by mode."""

    level: str
    levels: tuple[str, ...]
    down: Mapping[str, Path]
    up: Mapping[str, Path]


class Tree:
    """The hops of one machine, DRAM's first."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.step = machine.instruction_step
        self.hops = _hops(machine)
        self.down = functools.cache(self._down)
        self.up = functools.cache(self._up)

    # ---- words

    def used(self, layout: Layout, level: str) -> int:
        """Different indices of a level that hold different elements."""
        return math.prod(sub.size for sub in layout.subaxes if sub.level == level)

    def words(self, layout: Layout) -> int:
        """Long words of each innermost cell, without holes."""
        return self.used(layout, ADDRESS) * self.used(layout, TIME)

    def below(self, layout: Layout, hop: int) -> int:
        """Different words in one child of a hop."""
        levels = [level for later in self.hops[hop + 1 :] for level in later.levels]
        return self.words(layout) * math.prod(self.used(layout, level) for level in levels)

    def stored(self, layout: Layout, dtype: str) -> int:
        """Long words in DRAM per cell that has one: no copies, lanes full."""
        cells = self.machine.cells(self.hops[0].level)
        return -(-layout.stored_elements() // (self.machine.lanes(dtype) * cells))

    # ---- ways

    def download(self, layout: Layout, dtype: str) -> Cost:
        """DRAM → local memory."""
        return self.down(layout, dtype, 0)

    def upload(self, layout: Layout, dtype: str) -> Cost:
        """Local memory → DRAM; of copies only the first leaves."""
        return self.up(layout, dtype, 0)

    def _down(self, layout: Layout, dtype: str, top: int) -> Cost:
        """From the memory above hop `top` to the local memories."""
        total = Cost()
        for i in range(top, len(self.hops)):
            hop = self.hops[i]
            if i == 0:
                total += self._dram(hop.down, layout, dtype, self._is_spread(layout))
            else:
                total += self._cheapest(hop, hop.down, layout, self.below(layout, i), hop.levels)
        return total

    def _up(self, layout: Layout, dtype: str, top: int, reduced: frozenset[str] = frozenset()) -> Cost:
        """From the local memories to the memory above hop `top`. reduced: levels whose words are added up."""
        total = Cost()
        for i in reversed(range(top, len(self.hops))):
            hop = self.hops[i]
            is_reduced = any(level in reduced for level in hop.levels) and "reduce" in hop.up
            if i == 0:
                total += self._dram(hop.up, layout, dtype, not is_reduced)
            elif is_reduced:
                kept = math.prod(self.used(layout, level) for level in hop.levels if level not in reduced)
                total += self._cost(hop.up["reduce"], self.below(layout, i) * kept)
            else:
                total += self._cheapest(hop, {m: p for m, p in hop.up.items() if m in EACH}, layout,
                                        self.below(layout, i), hop.levels)  # fmt: skip
        return total

    def top_of(self, level: str) -> int:
        """The hop that crosses a level."""
        return next(i for i, hop in enumerate(self.hops) if level in hop.levels)

    def _is_spread(self, layout: Layout) -> bool:
        """Has every cell with DRAM elements of its own, so that none has to cross to another?"""
        cells = self.machine.cells(self.hops[0].level)
        level = self.hops[0].levels[0]
        inside = self.machine.index_levels[level] // cells if self.machine.index_levels[level] >= cells else 1
        reached = {0}
        for sub in layout.subaxes:
            if sub.level == level:
                reached = {index + digit * sub.stride for index in reached for digit in range(sub.size)}
        return len({index // inside for index in reached}) >= cells

    def _dram(self, paths: Mapping[str, Path], layout: Layout, dtype: str, own: bool) -> Cost:
        """own: words stay in the part of the tree that their DRAM belongs to; else they cross to the others."""
        modes = EACH if own else ALL
        path = next(path for mode, path in paths.items() if mode in modes)  # the machine file has one
        return self._cost(path, self.stored(layout, dtype))

    def _cheapest(
        self, hop: Hop, paths: Mapping[str, Path], layout: Layout, below: int, levels: tuple[str, ...]
    ) -> Cost:
        def volume(mode: str) -> int:
            same = levels if mode in ALL else tuple(mode.partition("-")[2].split("-"))
            sizes = (self.used(layout, n) if n in same else self.machine.index_levels[n] for n in levels)
            return below * math.prod(sizes)

        return min((self._cost(path, volume(mode)) for mode, path in paths.items()), key=lambda cost: cost.serial)

    def _cost(self, path: Path, words: int) -> Cost:
        cycles = math.ceil(words / path.rate) + path.latency
        return Cost(
            {path.name: self.in_steps(cycles)},
            {path.name: words * self.machine.cells(path.level)},
            {path.name: path.resource},
        )

    def in_steps(self, cycles: float) -> int:
        """Cycles in whole instructions."""
        return math.ceil(cycles / self.step) * self.step

    # ---- where data must cross

    def crossing(self, source: Layout, target: Layout) -> str | None:
        """The outermost level at which a cell needs what it does not have; LANE: words change; None: nothing does."""
        names = [*self.machine.index_levels]
        for level in names:
            if self.used(source, level) > 1 and _digits(source, level) != _digits(target, level):
                return level
        same = _digits(source, ADDRESS) == _digits(target, ADDRESS) and _digits(source, LANE) == _digits(target, LANE)
        return None if same else LANE


def _digits(layout: Layout, level: str) -> frozenset[tuple[int, int, int, int]]:
    """What decides the index at a level: (axis, elements of the axis per step, steps, stride) of its merged subaxes."""
    found = []
    for i, axis in enumerate(layout.merged().axes):
        weight = 1
        for sub in reversed(axis):
            if sub.level == level:
                found.append((i, weight, sub.size, sub.stride))
            weight *= sub.size
    return frozenset(found)


def _hops(machine: Machine) -> tuple[Hop, ...]:
    """The chain of paths from DRAM to the innermost level. Raises OptionError where the file has none."""
    ends = {machine.levels[-1].name, *(memory.name for memory in machine.local_memories)}
    chain = [DRAM]
    while chain[-1] not in ends:
        targets = [path.target_memory for path in machine.paths if path.source_memory == chain[-1]]
        onward = [target for target in targets if target not in chain]
        if not onward:
            raise OptionError(f"machine {machine.name}: no path from {chain[-1]} towards {machine.levels[-1].name}")
        chain.append(onward[0])
    pairs = list(itertools.pairwise(chain))
    down = [_modes(machine, *pair) for pair in pairs]
    up = [_modes(machine, *reversed(pair)) for pair in pairs]
    if not all(up):
        raise OptionError(f"machine {machine.name}: no path from {machine.levels[-1].name} back to {DRAM}")
    names = [level.name for level in machine.levels]
    starts = [names.index(next(iter(paths.values())).level) for paths in down]
    hops = []
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(names) - 1
        levels = tuple(name for name in names[start + 1 : end + 1] if name in machine.index_levels)
        hops.append(Hop(names[start], levels, down[i], up[i]))
    return tuple(hops)


def _modes(machine: Machine, source: str, target: str) -> dict[str, Path]:
    return {p.mode: p for p in machine.paths if (p.source_memory, p.target_memory) == (source, target)}
