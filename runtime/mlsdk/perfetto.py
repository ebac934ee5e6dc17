"""Trace files that a viewer opens: Perfetto's protobuf (ui.perfetto.dev) and Chrome's JSON (chrome://tracing too).

Field numbers are those of perfetto/trace/trace_packet.proto and track_event.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pfvm.compiler.wire import varint

_SEQUENCE = 1
_PROCESS_TRACK = 1
_BEGIN, _END = 1, 2  # TrackEvent.Type


class Event(NamedTuple):
    """One span of time of one thread, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int


def chrome_json(events: Iterable[Event]) -> bytes:
    """Complete events, in microseconds."""
    rows = [
        {"name": e.name, "ph": "X", "ts": e.start / 1e3, "dur": (e.end - e.start) / 1e3, "pid": 1, "tid": e.thread}
        for e in events
    ]
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}).encode()


def perfetto(events: Iterable[Event]) -> bytes:
    """A Trace of one process: a track for each thread, and each event as its begin and its end."""
    events = list(events)
    threads = sorted({e.thread for e in events})
    process = _number(1, _PROCESS_TRACK) + _message(3, _number(1, 1) + _text(6, "pfvm"))
    packets = [_message(60, process) + _number(10, _SEQUENCE)]
    for index, thread in enumerate(threads):
        descriptor = _number(1, 2 + index) + _number(5, _PROCESS_TRACK)
        descriptor += _message(4, _number(1, 1) + _number(2, thread & 0x7FFFFFFF) + _text(5, f"thread {index}"))
        packets.append(_message(60, descriptor) + _number(10, _SEQUENCE))
        packets += (_packet(2 + index, *edge) for edge in _edges([e for e in events if e.thread == thread]))
    return b"".join(_message(1, packet) for packet in packets)


def _edges(events: Iterable[Event]) -> Iterator[tuple[int, str | None]]:
    """(time, the name of the event that begins or None where one ends), each event within the one around it."""
    open_events: list[Event] = []
    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        while open_events and open_events[-1].end <= event.start:
            yield open_events.pop().end, None
        yield event.start, event.name
        open_events.append(event)
    while open_events:
        yield open_events.pop().end, None


def _packet(track: int, time: int, name: str | None) -> bytes:
    event = _number(9, _END if name is None else _BEGIN) + _number(11, track)
    event += b"" if name is None else _text(23, name)
    return _number(8, time) + _number(10, _SEQUENCE) + _message(11, event)


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())
