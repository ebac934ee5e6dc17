"""A benchmark as a bar chart: SVG, written by hand, so that it needs no plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_COLORS = ("#2f6fb3", "#d98032", "#5a9e52", "#8a63a8", "#b4483f", "#777777")
_WIDTH, _LEFT, _RIGHT = 760, 190, 70
_BAR, _GAP, _TOP = 14, 14, 60


def plot(report: Mapping[str, Any]) -> str:
    """Bars of every model's candidates, relative to ONNX Runtime's median where it is there, else to the first's."""
    groups = [(measured, _bars(measured["results"])) for measured in report["models"]]
    labels = list(dict.fromkeys(label for _, bars in groups for label, _, _ in bars))
    longest = max((ratio for _, bars in groups for _, ratio, _ in bars), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    parts, y = [], _TOP
    for measured, bars in groups:
        threads = measured["threads"]
        name = measured["model"].removesuffix(".onnx")
        parts.append(_text(10, y + 12, name, weight="bold"))
        parts.append(_text(10, y + 28, f"{threads} thread{'s' if threads > 1 else ''}"))
        for label, ratio, text in bars:
            color = _COLORS[labels.index(label) % len(_COLORS)]
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{ratio * scale:.1f}" height="{_BAR - 2}" fill="{color}"/>')
            parts.append(_text(_LEFT + ratio * scale + 4, y + 10, text))
            y += _BAR
        y += max(_GAP, 34 - _BAR * len(bars))
    line = _LEFT + scale
    parts.append(
        f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{_TOP - 6}" y2="{y}" stroke="#444" stroke-dasharray="3 3"/>'
    )
    return _document(y + 10, [*_legend(labels), _text(10, 20, _title(report), weight="bold"), *parts])


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


def _legend(labels: Sequence[str]) -> list[str]:
    parts, x = [], 10
    for index, label in enumerate(labels):
        parts.append(f'<rect x="{x}" y="32" width="10" height="10" fill="{_COLORS[index % len(_COLORS)]}"/>')
        parts.append(_text(x + 14, 41, label))
        x += 30 + 7 * len(label)
    return parts


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(text)}</text>'


def _document(height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" font-family="sans-serif"'
        ' font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
