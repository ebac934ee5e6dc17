"""Simulates a candidate that resembles one already simulated: only where it differs.

A run leaves marks, copies of its state every few ops. A candidate starts at the last mark before anything differs: an
op, or the next use of a buffer that an op touches. It ends where its state meets that of a mark in the part that both
have in common, or where it is clearly too expensive. The result is that of a whole simulation, step for step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pfvm.compiler.plan.addresses import Arena

from .problem import Problem
from .simulation import NEVER, Policy, Simulation, Step

MARKS = 24  # in one run


class Candidate(NamedTuple):
    """What a search chooses: the order with its repetitions, how victims are chosen, and factors of their weights."""

    sequence: list[int]
    policy: Policy
    bias: Mapping[int, float] = {}


class _Mark(NamedTuple):
    """The state before the op at `position`. steps: how many there are."""

    position: int
    cycles: float
    excess: float
    steps: int
    arenas: tuple[Arena, ...]
    stored: list[bool]
    loaded: list[bool]
    next_use: list[int]


@dataclass
class Run:
    """A candidate simulated. marks: in order, the first at position 0; those of a spliced end may be missing."""

    candidate: Candidate
    cycles: float
    excess: float
    steps: list[Step]
    after: list[list[tuple[int, int, bool]]]
    marks: list[_Mark] = field(default_factory=list)


def simulate(problem: Problem, candidate: Candidate) -> Run:
    """The whole run. Raises Unschedulable."""
    simulation = Simulation(problem, *candidate)
    marks = []
    for position in range(len(candidate.sequence)):
        if position % _spacing(candidate.sequence) == 0:
            marks.append(_mark(simulation, position))
        simulation.run_at(position)
    return Run(candidate, simulation.cycles, simulation.excess, simulation.steps, simulation.after, marks)


def resimulate(problem: Problem, old: Run, candidate: Candidate, most: float = float("inf")) -> Run | None:
    """As `simulate`, from what `old` has in common; None where it would take more than `most` cycles.

    Raises Unschedulable.
    """
    simulation = Simulation(problem, *candidate)
    before, after = old.candidate.sequence, candidate.sequence
    least = sum(problem.ops[i].cycles for i in after) - sum(problem.ops[i].cycles for i in before)
    floor = old.cycles - old.excess + least
    if floor > most:
        return None
    kept = [mark for mark in old.marks if mark.position <= _first_difference(old, simulation)]
    if kept:
        _restore(simulation, old, kept[-1])
    marks = kept[:-1]
    start = kept[-1].position if kept else 0
    tail = _common_tail(old, candidate)
    shift = len(after) - len(before)
    ends = {mark.position + shift: mark for mark in old.marks if mark.position >= len(before) - tail}
    for position in range(start, len(after)):
        if position % _spacing(after) == 0:
            marks.append(_mark(simulation, position))
        end = ends.get(position) if position > start else None
        if end is not None and _meets(simulation, end):
            return _spliced(simulation, old, end, candidate, marks, floor)
        simulation.run_at(position)
        if floor + simulation.excess > most:
            return None
    return Run(candidate, simulation.cycles, simulation.excess, simulation.steps, simulation.after, marks)


def _spacing(sequence: Sequence[int]) -> int:
    return max(len(sequence) // MARKS, 4)


def _mark(simulation: Simulation, position: int) -> _Mark:
    return _Mark(
        position,
        simulation.cycles,
        simulation.excess,
        len(simulation.steps),
        tuple(arena.copy() for arena in simulation.arenas),
        list(simulation.stored),
        list(simulation.loaded),
        list(simulation.next_use),
    )


def _restore(simulation: Simulation, old: Run, mark: _Mark) -> None:
    simulation.cycles, simulation.excess = mark.cycles, mark.excess
    simulation.steps = old.steps[: mark.steps]
    simulation.arenas = [arena.copy() for arena in mark.arenas]
    simulation.stored, simulation.loaded = list(mark.stored), list(mark.loaded)
    simulation.next_use = list(mark.next_use)
    for memory, arena in enumerate(simulation.arenas):
        for block in arena:
            simulation.where[block.key][memory] = block.start  # type: ignore[call-overload]


def _first_difference(old: Run, simulation: Simulation) -> int:
    """The first position where an op, what comes after it, or the way to choose victims is another one."""
    was, now = old.candidate, simulation
    if was.policy is not now.policy:
        return 0
    other = {i for i, (a, b) in enumerate(zip(was.sequence, now.sequence)) if a != b}
    same = 0
    for position, (before, after) in enumerate(zip(old.after, now.after)):
        # A result goes where its reader's other operands are: the reader counts, too.
        if position in other or before != after or any(later in other for _, later, _ in after):
            break
        same += 1
    if same and same < len(now.sequence):
        same -= 1  # a policy may look at the op that follows
    changed = {b for b in (*was.bias, *now.bias) if was.bias.get(b) != now.bias.get(b)}
    if changed:
        for position, touched in enumerate(now.after[:same]):
            if any(b in changed for b, _, _ in touched):
                return position
    return same


def _common_tail(old: Run, candidate: Candidate) -> int:
    """How many of the last ops are the same, chosen for alike."""
    if old.candidate.policy is not candidate.policy:
        return 0
    changed = {b for b in (*old.candidate.bias, *candidate.bias) if old.candidate.bias.get(b) != candidate.bias.get(b)}
    same = 0
    for a, b, touched in zip(reversed(old.candidate.sequence), reversed(candidate.sequence), reversed(old.after)):
        if a != b or (changed and any(buffer in changed for buffer, _, _ in touched)):
            break
        same += 1
    return same


def _meets(simulation: Simulation, mark: _Mark) -> bool:
    """Is the state the mark's, in all that matters from here on?"""
    if not all(a.has_blocks_of(b) for a, b in zip(simulation.arenas, mark.arenas)):
        return False
    if simulation.loaded != mark.loaded:
        return False
    if simulation.stored == mark.stored:
        return True
    next_position = simulation.position + 1
    made = {b for i in set(simulation.sequence[next_position:]) for b in simulation.problem.ops[i].writes}
    return all(
        a == b or (later == NEVER and buffer not in made)
        for buffer, (a, b, later) in enumerate(zip(simulation.stored, mark.stored, simulation.next_use))
    )


def _spliced(
    simulation: Simulation, old: Run, end: _Mark, candidate: Candidate, marks: list[_Mark], floor: float
) -> Run:
    """The candidate's run so far, and the old one's from a mark on."""
    more, later = simulation.cycles - end.cycles, len(simulation.steps) - end.steps
    extra = simulation.excess - end.excess
    steps = simulation.steps + old.steps[end.steps :]
    if len(candidate.sequence) == len(old.candidate.sequence):
        here = marks[-1].position if marks else -1
        marks += [
            mark._replace(cycles=mark.cycles + more, excess=mark.excess + extra, steps=mark.steps + later)
            for mark in old.marks
            if mark.position > max(here, end.position - 1)
        ]
    cycles = old.cycles + more
    return Run(candidate, cycles, cycles - floor, steps, simulation.after, marks)
