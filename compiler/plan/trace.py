"""trace.json: a schedule in Chrome's trace format, for Perfetto and chrome://tracing. One row per unit and path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .placement import find_placement
from .timeline import Span

_PROGRAM = "nodes"


def make_trace(spans: Sequence[Span], clock_mhz: float) -> dict[str, Any]:
    """The trace of a timeline. Times are microseconds, as the format wants; `args` has the cycles."""
    units = sorted({name for span in spans for name in span.cost.busy})
    rows = {name: row for row, name in enumerate([_PROGRAM, *units])}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}} for name, row in rows.items()
    ]
    for span in spans:
        if not span.cost.busy:
            continue
        events.append(_event(span, rows[_PROGRAM], span.end - span.start, clock_mhz))
        events += [_event(span, rows[name], cycles, clock_mhz) for name, cycles in span.cost.busy.items()]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _event(span: Span, row: int, cycles: int, clock_mhz: float) -> dict[str, Any]:
    out = span.node.outputs[0]
    placement = find_placement(out)
    return {
        "name": f"{span.node.op_type} {out.name}",
        "cat": span.node.op_type,
        "ph": "X",
        "pid": 0,
        "tid": row,
        "ts": span.start / clock_mhz,
        "dur": cycles / clock_mhz,
        "args": {
            "start_cycle": span.start,
            "cycles": cycles,
            "loc": None if placement is None else placement.location,
            "layout": None if placement is None else str(placement.layout),
        },
    }
