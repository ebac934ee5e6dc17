"""How far a long piece of work is, for whoever shows it. Work that nobody watches says it to nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float | None], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(what: str, part: float | None = None) -> None:
    """Says what is being done, and which part of the whole is done: 0 to 1, None where nobody can tell."""
    listener = _listener.get()
    if listener is not None:
        listener(what, part)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While it is open, `listener` is called with what this thread reports."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)
