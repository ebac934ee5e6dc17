"""The schedulers that look at more than one candidate: eviction by next use, and annealing over orders.

A search is counted in candidates, each simulated once, and drawn by a seeded generator: ended by its steps it is
deterministic. A time budget only cuts it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from . import orders, policies
from .annealing import StoppedBy, anneal
from .incremental import Candidate, Run, simulate
from .problem import Problem
from .simulation import Simulation, Step, Unschedulable

SMALL_OPS = 12  # of so few ops spill_opt looks at orders, too
SMALL_CANDIDATES = 1500


@dataclass
class Found:
    """The best schedule of a search, how many candidates it took, and what ended it ("none": no search)."""

    cycles: float
    steps: list[Step]
    candidates: int
    stopped_by: StoppedBy = "none"


def spill_opt(problem: Problem, start: list[int], seed: int = 0) -> Found:
    """Keeps values or evicts them by next use, in the order given; the best of a few ways to weigh the next use.

    Of a problem of up to SMALL_OPS ops it looks at SMALL_CANDIDATES other orders. Never worse than
    `reuse_consecutive`. Raises Unschedulable.
    """
    best, count = _spill_opt(problem, start, seed)
    return _or_reuse(problem, start, Found(best.cycles, best.steps, count))


def auto_recompute_sa(
    problem: Problem, start: list[int], steps: int = 1000, time_budget: float | None = None, seed: int = 0
) -> Found:
    """Simulated annealing over orders, recomputation and what goes first; never worse than `spill_opt`."""
    first, count = _spill_opt(problem, start, seed)
    others = (orders.near_use(problem, start), *_orders(problem))
    better, more = _best_of(problem, others if steps else ())
    if better is not None and better.cycles < first.cycles:
        first = better
    best, tried, stopped = anneal(problem, first, steps, random.Random(seed), time_budget)
    return _or_reuse(problem, start, Found(best.cycles, best.steps, count + more + tried, stopped))


def _or_reuse(problem: Problem, start: list[int], found: Found) -> Found:
    """What was found, or the schedule of `reuse_consecutive` where that takes less.

    Eviction by next use is greedy: it may keep a value whose room a larger one would have been worth more.
    """
    try:
        plain = Simulation(problem, start, policies.REUSE_CONSECUTIVE).run()
    except Unschedulable:  # no rival
        return found
    if plain.cycles < found.cycles:
        return Found(plain.cycles, plain.steps, found.candidates, found.stopped_by)
    return found


def _spill_opt(problem: Problem, start: list[int], seed: int) -> tuple[Run, int]:
    best, count = _best_of(problem, [start])
    if best is None or len(start) <= SMALL_OPS:
        other, more = _best_of(problem, _orders(problem))
        count += more
        if best is None or (other is not None and other.cycles < best.cycles):
            best = other
    if best is None:  # says what does not fit
        best = simulate(problem, Candidate(start, policies.KEEPING[0]))
    if len(start) > SMALL_OPS:
        return best, count
    best, more, _ = anneal(problem, best, SMALL_CANDIDATES, random.Random(seed), repeats=False)
    return best, count + more


def _orders(problem: Problem) -> list[list[int]]:
    return [orders.depth_first(problem), orders.least_live(problem), orders.least_live(problem, late=True)]


def _best_of(problem: Problem, sequences: Iterable[list[int]]) -> tuple[Run | None, int]:
    """The cheapest of orders under every policy that keeps values, the first of equals; None where none can run."""
    best: Run | None = None
    count = 0
    for sequence in sequences:
        for policy in policies.KEEPING:
            count += 1
            try:
                found = simulate(problem, Candidate(sequence, policy))
            except Unschedulable:
                continue
            if best is None or found.cycles < best.cycles:
                best = found
    return best, count
