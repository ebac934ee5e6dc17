"""Changes of a candidate, for a search: shift ops within their dependences, draw together what belongs together,
compute a value again, let one go earlier."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from . import policies
from .incremental import Candidate, Run
from .problem import Problem

Sequence = list[int]
MOST_REPEATED = 8  # ops in one repetition


class Spot(NamedTuple):
    """A download of what was in a local memory before. position: of the op that waits for it. here: what is in local
    memories or DRAM then, so that it need not be computed again."""

    buffer: int
    position: int
    here: frozenset[int]


def hot_spots(problem: Problem, run: Run) -> list[Spot]:
    """Every download of a run that an order, or computing again, could spare."""
    spots, position = [], 0
    seen: set[int] = set()
    stored = {b for b, buffer in enumerate(problem.buffers) if buffer.stored}
    places = [0] * len(problem.buffers)
    local: set[int] = set()
    for step in run.steps:
        if step.kind == "run":
            op = problem.ops[step.subject]
            seen.update(op.writes)
            local.update(op.writes)
            stored.update(op.stores)
            for b in op.writes:
                places[b] += 1
            position += 1
        elif step.kind == "upload":
            stored.add(step.subject)
        elif step.kind == "drop":
            places[step.subject] -= 1
            if not places[step.subject]:
                local.discard(step.subject)
        else:
            if step.kind == "download" and step.subject in seen:
                spots.append(Spot(step.subject, position, frozenset(local)))
            seen.add(step.subject)
            local.add(step.subject)
            places[step.subject] += 1
    return spots


def propose(
    problem: Problem, run: Run, spots: list[Spot], rng: random.Random, repeats: bool = True
) -> Candidate | None:
    """A neighbour of a run's candidate; None where the change that was drawn cannot be made."""
    candidate = run.candidate
    sequence = candidate.sequence
    choice = rng.random()
    if choice < 0.05:
        return candidate._replace(policy=rng.choice(policies.KEEPING))
    if choice < 0.13:
        return _biased(problem, candidate, spots, rng)
    if choice < 0.45 and spots:
        return candidate._replace(sequence=drawn_together(problem, sequence, rng.choice(spots), rng))
    if choice < 0.65 and repeats:
        if rng.random() < 0.3:
            shorter = without_repeat(sequence, rng)
            if shorter is not None:
                return candidate._replace(sequence=shorter)
        if spots:
            longer = repeated(problem, sequence, rng.choice(spots), rng)
            return None if longer is None else candidate._replace(sequence=longer)
    change: Callable[[Problem, Sequence, random.Random], Sequence]
    change = rng.choices([shifted, hurried, delayed], [3, 1, 1])[0]
    new = change(problem, sequence, rng)
    return None if new == sequence else candidate._replace(sequence=new)


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


def hurried(problem: Problem, sequence: Sequence, rng: random.Random) -> Sequence:
    """A random op directly behind the last one that it needs: an update of a weight next to its gradient."""
    position = rng.randrange(len(sequence))
    needed = set(problem.predecessors[sequence[position]])
    at = next((i for i in range(position - 1, -1, -1) if sequence[i] in needed), -1)
    return earlier(problem, sequence, position, at + 1)


def delayed(problem: Problem, sequence: Sequence, rng: random.Random) -> Sequence:
    """A random op directly before the first one that needs it."""
    position = rng.randrange(len(sequence))
    readers = set(problem.successors[sequence[position]])
    at = next((i for i in range(position + 1, len(sequence)) if sequence[i] in readers), len(sequence))
    return later(problem, sequence, position, at - 1)


def drawn_together(problem: Problem, sequence: Sequence, spot: Spot, rng: random.Random) -> Sequence:
    """A buffer's reader is moved to where the buffer is made or last read, or its maker to the reader."""
    buffer, position, _ = spot
    before = [at for at in range(position) if _touches(problem, sequence[at], buffer)]
    if not before:
        return sequence
    at = before[-1] if rng.random() < 0.7 else rng.choice(before)
    if rng.random() < 0.6:
        return earlier(problem, sequence, position, at + 1)
    return later(problem, sequence, at, position - 1)


def repeated(problem: Problem, sequence: Sequence, spot: Spot, rng: random.Random) -> Sequence | None:
    """A buffer is computed again just before its reader, and what that needs and is gone, with some luck; for all later
    readers as well."""
    again: list[int] = []
    wanted = [spot.buffer]
    while wanted and len(again) < MOST_REPEATED:
        maker = problem.producer.get(wanted.pop())
        if maker is None or maker in again:
            continue
        if not problem.ops[maker].repeatable or problem.ops[maker].stores:
            return None
        again.append(maker)
        gone = [b for b in problem.ops[maker].reads if b not in spot.here and not problem.buffers[b].stored]
        wanted += [b for b in gone if rng.random() < 0.7]
    again.sort()  # ops are numbered in a topological order
    at = spot.position
    return [*sequence[:at], *again, *sequence[at:]] if again else None


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


def _biased(problem: Problem, candidate: Candidate, spots: list[Spot], rng: random.Random) -> Candidate:
    """One buffer goes earlier or stays longer than its next use says."""
    bias = dict(candidate.bias)
    if bias and rng.random() < 0.3:
        del bias[rng.choice(sorted(bias))]
        return candidate._replace(bias=bias)
    if spots and rng.random() < 0.6:
        bias[rng.choice(spots).buffer] = rng.choice((0.1, 4.0, 20.0))
    else:
        bias[rng.randrange(len(problem.buffers))] = rng.choice((0.1, 0.3, 4.0))
    return candidate._replace(bias=bias)


def _touches(problem: Problem, index: int, buffer: int) -> bool:
    op = problem.ops[index]
    return buffer in op.writes or buffer in op.reads or buffer in op.streams
