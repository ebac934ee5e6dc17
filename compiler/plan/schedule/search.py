"""The schedulers that search: the best of several orders, and annealing over orders and recomputation.

A search is counted in candidates, each simulated once, and drawn by a seeded generator: ended by its steps it is
deterministic. A time budget only cuts it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from . import moves, orders, policies
from .problem import Problem
from .simulation import Policy, Simulation, Unschedulable

REFINED_OPS = 60_000  # how many ops `spill_opt` may simulate to improve the order that it chose
REFINEMENTS = 1500
OTHER_POLICY = 0.15  # how often a candidate tries another way to choose victims
StoppedBy = Literal["steps", "time", "none"]


@dataclass
class Found:
    """The best simulation of a search, how many candidates it took, and what ended it ("none": no search)."""

    simulation: Simulation
    candidates: int
    stopped_by: StoppedBy = "none"

    @property
    def cycles(self) -> float:
        """Of the best."""
        return self.simulation.cycles


class Search:
    """Candidates of one problem: simulates and counts them, and knows when to stop."""

    def __init__(self, problem: Problem, time_budget: float | None = None) -> None:
        self.problem = problem
        self.candidates = 0
        self._end = None if time_budget is None else time.monotonic() + time_budget

    @property
    def out_of_time(self) -> bool:
        """Is the time budget used up?"""
        return self._end is not None and time.monotonic() >= self._end

    def try_(self, sequence: list[int], policy: Policy) -> Simulation | None:
        """The simulation of a candidate; None where it cannot run."""
        self.candidates += 1
        try:
            return Simulation(self.problem, sequence, policy).run()
        except Unschedulable:
            return None

    def best_of(self, sequences: Iterable[list[int]]) -> Simulation:
        """The cheapest of several orders under every policy that keeps values; the first of equals.

        Raises Unschedulable where none can run.
        """
        best: Simulation | None = None
        last = None
        for sequence in sequences:
            last = sequence
            for policy in policies.KEEPING:
                found = self.try_(sequence, policy)
                if found is not None and (best is None or found.cycles < best.cycles):
                    best = found
        if best is None:
            return Simulation(self.problem, last or [], policies.KEEPING[0]).run()
        return best


def spill_opt(problem: Problem, start: list[int], seed: int = 0) -> Found:
    """Keeps values or evicts them by next use, in the best order found among a few and their neighbours."""
    search = Search(problem)
    first = search.best_of(
        [start, orders.depth_first(problem), orders.least_live(problem), orders.least_live(problem, late=True)]
    )
    steps = min(REFINEMENTS, REFINED_OPS // max(len(problem.ops), 1))
    best, _ = _anneal(search, first, _neighbour, steps, problem.compulsory_cycles(), random.Random(seed))
    return Found(best, search.candidates)


def auto_recompute_sa(
    problem: Problem, start: list[int], steps: int = 1000, time_budget: float | None = None, seed: int = 0
) -> Found:
    """Simulated annealing over orders and recomputation, from what `spill_opt` finds; never worse than that."""
    search = Search(problem, time_budget)
    first = spill_opt(problem, start, seed)
    floor = problem.compulsory_cycles()
    best, stopped = _anneal(search, first.simulation, _neighbour_or_repeat, steps, floor, random.Random(seed))
    return Found(best, first.candidates + search.candidates, stopped)


def _anneal(
    search: Search, first: Simulation, propose: Propose, steps: int, floor: float, rng: random.Random
) -> tuple[Simulation, StoppedBy]:
    """Annealing from `first`, until nothing above `floor` is left, and the best that it saw.

    The temperature falls from what lies above the floor to a thousandth of that.
    """
    now = best = first
    for step in range(steps):
        if best.cycles <= floor or len(first.sequence) < 2:
            break
        if search.out_of_time:
            return best, "time"
        policy = rng.choice(policies.KEEPING) if rng.random() < OTHER_POLICY else now.policy
        found = search.try_(propose(search.problem, now, rng), policy)
        if found is None:
            continue
        worse = found.cycles - now.cycles
        temperature = 0.001 ** (step / steps) * (best.cycles - floor)
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            now = found
            if now.cycles < best.cycles:
                best = now
    return best, "steps"


Propose = Callable[[Problem, Simulation, random.Random], list[int]]


def _neighbour(problem: Problem, now: Simulation, rng: random.Random) -> list[int]:
    spots = moves.hot_spots(now)
    sequence = list(now.sequence)
    if spots and rng.random() < 0.5:
        return moves.drawn_together(problem, sequence, rng.choice(spots), rng)
    return moves.shifted(problem, sequence, rng)


def _neighbour_or_repeat(problem: Problem, now: Simulation, rng: random.Random) -> list[int]:
    choice = rng.random()
    sequence: list[int] | None = None
    if choice < 0.3:
        spots = moves.hot_spots(now)
        sequence = moves.repeated(problem, list(now.sequence), rng.choice(spots), rng) if spots else None
    elif choice < 0.4:
        sequence = moves.without_repeat(list(now.sequence), rng)
    return sequence or _neighbour(problem, now, rng)
