"""What a program does when: `trace_scope` writes a file of the compilations, calls and named events within it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import time
from collections.abc import Iterator

from .perfetto import Event, chrome_json, perfetto

_scopes: list[list[Event]] = []
_lock = threading.Lock()


@contextlib.contextmanager
def trace_scope(filename: str | os.PathLike[str] | None) -> Iterator[None]:
    """Record events within the block and write them to a file; None records nothing.

    A name that ends in .json gives Chrome's format, any other Perfetto's protobuf. The file is written when the block
    ends, also by an exception. Of nested scopes every one has the events within it.
    """
    if filename is None:
        yield
        return
    events: list[Event] = []
    with _lock:
        _scopes.append(events)
    try:
        yield
    finally:
        with _lock:
            _scopes[:] = [scope for scope in _scopes if scope is not events]
        _write(pathlib.Path(filename), events)


@contextlib.contextmanager
def trace_event(name: str) -> Iterator[None]:
    """A named event of the trace, from the beginning to the end of the block; nothing outside a trace_scope."""
    if not _scopes:
        yield
        return
    start = time.perf_counter_ns()
    try:
        yield
    finally:
        event = Event(name, threading.get_ident(), start, time.perf_counter_ns())
        with _lock:
            for scope in _scopes:
                scope.append(event)


def _write(path: pathlib.Path, events: list[Event]) -> None:
    """Under a temporary name first: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(chrome_json(events) if path.suffix == ".json" else perfetto(events))
    temporary.replace(path)
