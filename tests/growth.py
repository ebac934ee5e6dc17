"""How CPU time grows with the size of a model: what tells linear work from quadratic, on a busy machine too."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable


def assert_linear(
    prepare: Callable[[int], Callable[[], object]], few: int, *, times: int = 4, limit: float | None = None
) -> None:
    """Asserts that what `prepare(few * times)` returns takes at most `limit` times as long as what `prepare(few)` does.

    The limit is times ** 1.5 where none is given, halfway between linear and quadratic. CPU seconds of this process
    without the collector, the least of three calls in turns; of up to eight where those are above the limit, since
    noise falls away from the least of more calls, and what the work itself takes does not.
    """
    limit = times**1.5 if limit is None else limit
    seconds(prepare(max(few // 10, 1)))  # imports, caches
    small = large = math.inf
    for turn in range(1, 9):
        small = min(small, seconds(prepare(few)))
        large = min(large, seconds(prepare(few * times)))
        if turn >= 3 and large <= limit * small:
            break
    assert large <= limit * small, f"{few}: {small:.2f} s, {few * times}: {large:.2f} s"


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        gc.enable()
