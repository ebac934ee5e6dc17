"""What work says of itself while it goes on: how far it is, to whoever shows it, and remarks, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_silent = False

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


def silence(silent: bool) -> None:
    """Whether this process makes no remarks."""
    global _silent
    _silent = silent


def remark(line: str) -> None:
    """One line on stderr that is no error, unless remarks are silenced (`pfvm --quiet`)."""
    if not _silent:
        print(line, file=sys.stderr)
