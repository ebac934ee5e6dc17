"""How CPU time grows with the size of a model: what tells linear work from quadratic, on a busy machine too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def assert_linear(prepare: Callable[[int], Callable[[], object]], few: int, *, times: int = 4) -> None:
    """Asserts that what `prepare(few * times)` returns takes about `times` as long as what `prepare(few)` does.

    The limit is times ** 1.5, halfway between linear and quadratic, so that a busy machine does not reach it: what the
    figure is to a tenth, `pfvm bench` measures. CPU seconds of this process without the collector, the least of calls
    in turns.
    """
    seconds(prepare(max(few // 10, 1)))  # imports, caches
    small, large = (min(each) for each in zip(*((seconds(prepare(n)) for n in (few, few * times)) for _ in range(3))))
    assert large <= times**1.5 * small, f"{few}: {small:.2f} s, {few * times}: {large:.2f} s"


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
