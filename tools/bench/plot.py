"""A benchmark as a bar chart: SVG, written by hand, so that it needs no plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_COLORS = ("#2f6fb3", "#d98032", "#5a9e52", "#8a63a8", "#b4483f", "#777777")
WIDTH, LEFT, RIGHT = 760, 190, 70
_BAR, _GAP, _TOP = 14, 14, 60


def plot(report: Mapping[str, Any]) -> str:
    """Bars of every model's candidates, relative to ONNX Runtime's median where it is there, else to the first's."""
    groups = [(measured, _bars(measured["results"])) for measured in report["models"]]
    labels = list(dict.fromkeys(label for _, bars in groups for label, _, _ in bars))
    longest = max((ratio for _, bars in groups for _, ratio, _ in bars), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, y = [], _TOP
    for measured, bars in groups:
        threads = measured["threads"]
        name = measured["model"].removesuffix(".onnx")
        parts.append(text(10, y + 12, name, weight="bold"))
        parts.append(text(10, y + 28, f"{threads} thread{'s' if threads > 1 else ''}"))
        for label, ratio, said in bars:
            parts.append(rectangle(LEFT, y, ratio * scale, _BAR - 2, labels.index(label)))
            parts.append(text(LEFT + ratio * scale + 4, y + 10, said))
            y += _BAR
        y += max(_GAP, 34 - _BAR * len(bars))
    line = LEFT + scale
    parts.append(
        f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{_TOP - 6}" y2="{y}" stroke="#444" stroke-dasharray="3 3"/>'
    )
    return document(y + 10, [*legend(labels), text(10, 20, _title(report), weight="bold"), *parts])


def _bars(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, str]]:
    """(label, ratio, text) of each candidate that has figures; "!" marks a noisy one."""
    measured = [row for row in results if row.get("median_seconds")]
    base = next((r for r in measured if r["candidate"] == "onnxruntime"), measured[0] if measured else None)
    if base is None:
        return []
    bars = []
    for row in measured:
        ratio = row["median_seconds"] / base["median_seconds"]
        noisy = " !" if row["noisy"] else ""
        bars.append((_label(row["candidate"]), ratio, f"{ratio:.2f}  {row['median_seconds'] * 1e3:.1f} ms{noisy}"))
    return bars


def _label(candidate: str) -> str:
    """A device's whole name; of a net in a file, its engine."""
    return candidate.partition(":")[0] if ".py" in candidate else candidate


def _title(report: Mapping[str, Any]) -> str:
    names = [row["candidate"] for row in report["models"][0]["results"]] if report["models"] else []
    base = "ONNX Runtime" if "onnxruntime" in names else "the first"
    return f"Latency relative to {base}'s ({report['machine']['cpu']}); ! = noisy"


def rectangle(x: float, y: float, width: float, height: float, color: int) -> str:
    """In the color of a label's number."""
    fill = _COLORS[color % len(_COLORS)]
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" fill="{fill}"/>'


def legend(labels: Sequence[str]) -> list[str]:
    """Colors and their labels, in one line below the title."""
    parts, x = [], 10
    for index, label in enumerate(labels):
        parts.append(rectangle(x, 32, 10, 10, index))
        parts.append(text(x + 14, 41, label))
        x += 30 + 7 * len(label)
    return parts


def text(x: float, y: float, said: str, weight: str = "normal") -> str:
    """A line of text that begins at (x, y)."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(said)}</text>'


def document(height: float, parts: Sequence[str]) -> str:
    """The SVG file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" font-family="sans-serif"'
        ' font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
