"""Simulated annealing over candidates: an order with repetitions, a way to choose victims, and their bias."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Literal

from pfvm.compiler import progress

from . import moves
from .incremental import Run, resimulate, simulate
from .problem import Problem
from .simulation import Unschedulable

StoppedBy = Literal["steps", "time", "none"]

WARM_UP = 40  # candidates that say how much one move costs
HOTTEST, COLDEST = 0.5, 0.01  # temperatures, in parts of what a move that makes it worse typically costs
ROUNDS = 3  # each begins hot, at what was best so far, and cools down


def anneal(
    problem: Problem,
    first: Run,
    steps: int,
    rng: random.Random,
    time_budget: float | None = None,
    repeats: bool = True,
) -> tuple[Run, int, StoppedBy]:
    """The best run that `steps` candidates from `first` on find, how many it tried, and what ended it.

    It ends early where nothing above the compulsory cycles is left. repeats: may values be computed again?
    """
    search = _Annealing(problem, first, steps, rng, repeats)
    end = None if time_budget is None else time.monotonic() + time_budget
    floor = problem.compulsory_cycles()
    while search.tried < steps and search.best.cycles > floor and len(first.candidate.sequence) > 1:
        if end is not None and time.monotonic() >= end:
            return search.best, search.tried, "time"
        search.step()
        progress.report(f"candidate {search.tried} of {steps}", search.tried / steps)
    return search.best, search.tried, "steps"


class _Annealing:
    def __init__(self, problem: Problem, first: Run, steps: int, rng: random.Random, repeats: bool) -> None:
        self.problem, self.steps, self.rng, self.repeats = problem, steps, rng, repeats
        self.best = self.now = first
        self.spots = moves.hot_spots(problem, first)
        self.tried = 0
        self.scale = 0.0
        self.seen: list[float] = []  # what moves cost that made it worse
        self.round = max((steps - WARM_UP) // ROUNDS, 1)

    def step(self) -> None:
        """Tries one candidate."""
        at = self.tried - WARM_UP
        if at >= 0 and at % self.round == 0 and self.now is not self.best:
            self._go(self.best)
        self.tried += 1
        candidate = moves.propose(self.problem, self.now, self.spots, self.rng, self.repeats)
        if candidate is None:
            return
        allowed = self.now.cycles - self._temperature(at) * math.log(1.0 - self.rng.random())
        most = allowed if at >= 0 else float("inf")
        try:
            found = resimulate(self.problem, self.now, candidate, most)
        except Unschedulable:
            return
        if found is None:
            return
        if at < 0 and found.cycles > self.now.cycles:
            self.seen.append(found.cycles - self.now.cycles)
        if found.cycles <= allowed:
            self._go(found)
            if found.cycles < self.best.cycles:
                self.best = found

    def _temperature(self, at: int) -> float:
        if at < 0:
            return 0.0
        if at == 0:
            self.scale = statistics.median(self.seen) if self.seen else 0.0
        return self.scale * HOTTEST * (COLDEST / HOTTEST) ** (at % self.round / self.round)

    def _go(self, run: Run) -> None:
        if len(run.marks) < 2 or len(run.candidate.sequence) != len(self.now.candidate.sequence):
            run.marks = simulate(self.problem, run.candidate).marks
        self.now = run
        self.spots = moves.hot_spots(self.problem, run)
