"""What is made of a candidate's rounds: the median, the spread, and whether they can be trusted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Above these a run is marked noisy.
WIDE_SPREAD = 0.10  # IQR / median
LOADED = 0.25  # running tasks per core before the start


class Figures(NamedTuple):
    """Seconds. `spread` is the interquartile range over the median."""

    median: float
    iqr: float
    fastest: float

    @property
    def spread(self) -> float:
        """The interquartile range as a part of the median."""
        return self.iqr / self.median if self.median else 0.0


def figures(rounds: Sequence[float]) -> Figures:
    """Of one value per round, at least one."""
    if len(rounds) == 1:
        return Figures(rounds[0], 0.0, rounds[0])
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return Figures(statistics.median(rounds), high - low, min(rounds))


def noise(found: Figures, load_before: float, cores: int) -> list[str]:
    """Reasons not to trust a run; none is the good case."""
    reasons = []
    if load_before > LOADED * cores:
        reasons.append(f"load {load_before:.1f} on {cores} cores before the start")
    if found.spread > WIDE_SPREAD:
        reasons.append(f"spread {found.spread:.0%}")
    return reasons
