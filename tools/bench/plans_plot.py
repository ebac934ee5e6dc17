"""Schedulers on many graphs as a bar chart, SVG: cycles relative to reuse_consecutive's, the lower bound as a tick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfvm.compiler.plan.plan_options import SCHEDULERS

from .plot import LEFT, RIGHT, WIDTH, document, legend, rectangle, text

_BAR, _GAP, _TOP = 9, 8, 60
_LONGEST = 1.5  # longer bars are cut, and say so


def plot_plans(report: Mapping[str, Any]) -> str:
    """Of what `bench_plans` returns."""
    scale = (WIDTH - LEFT - RIGHT) / _LONGEST
    parts, y = [], _TOP
    for row in report["graphs"]:
        base = cycles(row, "reuse_consecutive")
        parts.append(text(10, y + 12, row["graph"], weight="bold"))
        parts.append(text(10, y + 26, f"{row['nodes']} nodes"))
        bound = LEFT + row["bound"] / base * scale
        for number, scheduler in enumerate(SCHEDULERS):
            ratio = cycles(row, scheduler) / base
            shown = min(ratio, _LONGEST)
            parts.append(rectangle(LEFT, y, shown * scale, _BAR - 1, number))
            parts.append(text(LEFT + shown * scale + 4, y + 8, f"{ratio:.2f}{'  (cut)' if shown < ratio else ''}"))
            y += _BAR
        parts.append(f'<line x1="{bound:.1f}" x2="{bound:.1f}" y1="{y - 4 * _BAR}" y2="{y}" stroke="#000"/>')
        y += _GAP
    title = f"Cycles relative to reuse_consecutive ({report['machine']}, cost model); | = lower bound"
    return document(y + 10, [*legend(SCHEDULERS), text(10, 20, title, weight="bold"), *parts])


def cycles(row: Mapping[str, Any], scheduler: str) -> int:
    """Of a graph's row."""
    return row["schedulers"][scheduler]["cycles"]
