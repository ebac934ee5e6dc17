"""Changes of a sequence of ops, for a search: shift an op with what it needs, and compute a value again."""

from __future__ import annotations

import random

from .problem import Problem
from .simulation import Simulation

Sequence = list[int]


def hot_spots(simulation: Simulation) -> list[tuple[int, int]]:
    """(buffer, position of the op that waits for it) of every download of what was in a local memory before."""
    spots, position = [], 0
    seen: set[int] = set()
    for step in simulation.steps:
        if step.kind == "run":
            seen.update(simulation.problem.ops[step.subject].writes)
            position += 1
        elif step.kind == "download":
            if step.subject in seen:
                spots.append((step.subject, position))
            seen.add(step.subject)
    return spots


def earlier(problem: Problem, sequence: Sequence, position: int, to: int) -> Sequence:
    """The op at `position` and what it needs from `to` on, moved to `to`."""
    needed: set[int] = set()
    taken, left = [], []
    for at in range(position, to - 1, -1):
        op = problem.ops[sequence[at]]
        made = (*op.writes, *op.stores)
        if at == position or not needed.isdisjoint(made):
            needed.difference_update(made)
            needed.update(op.reads, op.streams)
            taken.append(sequence[at])
        else:
            left.append(sequence[at])
    return [*sequence[:to], *reversed(taken), *reversed(left), *sequence[position + 1 :]]


def later(problem: Problem, sequence: Sequence, position: int, to: int) -> Sequence:
    """The op at `position` and what depends on it up to `to`, moved behind `to`."""
    made: set[int] = set()
    taken, left = [], []
    for at in range(position, to + 1):
        op = problem.ops[sequence[at]]
        if at == position or not made.isdisjoint((*op.reads, *op.streams)):
            made.update(op.writes, op.stores)
            taken.append(sequence[at])
        else:
            left.append(sequence[at])
    return [*sequence[:position], *left, *taken, *sequence[to + 1 :]]


def shifted(problem: Problem, sequence: Sequence, rng: random.Random) -> Sequence:
    """A random op, a random distance: near ones are likelier."""
    position = rng.randrange(len(sequence))
    distance = 1 + int(len(sequence) * rng.random() ** 3)
    if rng.random() < 0.5:
        return earlier(problem, sequence, position, max(position - distance, 0))
    return later(problem, sequence, position, min(position + distance, len(sequence) - 1))


def drawn_together(problem: Problem, sequence: Sequence, spot: tuple[int, int], rng: random.Random) -> Sequence:
    """A buffer's reader is moved to where the buffer is made or last read, or its maker to the reader."""
    buffer, position = spot
    before = [at for at in range(position) if _touches(problem, sequence[at], buffer)]
    if not before:
        return sequence
    at = before[-1] if rng.random() < 0.7 else rng.choice(before)
    if rng.random() < 0.6:
        return earlier(problem, sequence, position, at + 1)
    return later(problem, sequence, at, position - 1)


def repeated(problem: Problem, sequence: Sequence, spot: tuple[int, int], rng: random.Random) -> Sequence | None:
    """A buffer is computed again just before its reader, and with some luck what that needs too."""
    buffer, position = spot
    again: list[int] = []
    wanted = [buffer]
    while wanted and len(again) < 8:
        maker = problem.producer.get(wanted.pop())
        if maker is None or maker in again:
            continue
        if not problem.ops[maker].repeatable:
            return None
        again.append(maker)
        if rng.random() < 0.5:
            wanted += [b for b in problem.ops[maker].reads if not problem.buffers[b].stored]
    again.sort()  # ops are numbered in a topological order
    return [*sequence[:position], *again, *sequence[position:]] if again else None


def without_repeat(sequence: Sequence, rng: random.Random) -> Sequence | None:
    """One of the repetitions is dropped; None where there is none."""
    seen: set[int] = set()
    again = []
    for at, index in enumerate(sequence):
        if index in seen:
            again.append(at)
        seen.add(index)
    if not again:
        return None
    at = rng.choice(again)
    return [*sequence[:at], *sequence[at + 1 :]]


def _touches(problem: Problem, index: int, buffer: int) -> bool:
    op = problem.ops[index]
    return buffer in op.writes or buffer in op.reads or buffer in op.streams
