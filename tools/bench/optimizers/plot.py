"""Optimizers on many models as a bar chart, SVG: processor time relative to loading and saving the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pfvm.tools.bench.plot import LEFT, RIGHT, WIDTH, document, legend, rectangle, text

_BAR, _GAP, _TOP = 11, 10, 60
_LONGEST = 100.0  # the axis is logarithmic, from 1


def plot(report: Mapping[str, Any]) -> str:
    """Of what `bench_optimizers` returns."""
    scale = (WIDTH - LEFT - RIGHT - 60) / math.log(_LONGEST)
    names = report["optimizers"]
    parts, y = [], _TOP
    for measured in report["models"]:
        parts.append(text(10, y + 12, measured["model"].removesuffix(".onnx"), weight="bold"))
        parts.append(text(10, y + 26, f"{measured['nodes']} nodes"))
        for row in measured["results"]:
            ratio = row["cpu_seconds"] / measured["load_save_cpu_seconds"]
            length = scale * math.log(min(max(ratio, 1.01), _LONGEST))
            said = row["error"] or f"{ratio:.1f}  {row['nodes']} nodes{'  wrong' if row.get('differs') else ''}"
            parts.append(rectangle(LEFT, y, length, _BAR - 2, names.index(row["optimizer"])))
            parts.append(text(LEFT + length + 4, y + 9, said[:60]))
            y += _BAR
        y += max(_GAP, 34 - _BAR * len(measured["results"]))
    line = LEFT + scale * math.log(3)
    parts.append(
        f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{_TOP - 6}" y2="{y}" stroke="#444" stroke-dasharray="3 3"/>'
    )
    title = "Processor time ÷ that of loading and saving the file, logarithmic; dashed: 3"
    return document(y + 10, [*legend(names), text(10, 20, title, weight="bold"), *parts])
