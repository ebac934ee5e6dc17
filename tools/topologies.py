"""The table of `pfvm compile --device xla:tpu@…`: what a model takes on each TPU, by its compiler's estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .console import out, table


def print_topologies(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """A row for each device, below it why a figure is missing; reports as in report.json, or {"error": …}."""
    made = [report for report in reports.values() if "error" not in report]
    rows = table("device", "cycles", "time", "flops / peak", "HBM", "of", "fits")
    for name, report in reports.items():
        rows.add_row(name, *(_cells(report) if "error" not in report else _failed(report)))
    out().print(rows)
    for name, report in reports.items():
        for remark in _remarks(report):
            out().print(f"{name}: {remark}", soft_wrap=True)
    if made:
        kind = "bfloat16" if made[0]["bf16"] else f"precision {made[0]['precision']}"
        out().print(
            f"{kind}, effort {made[0]['effort']}; cycles as XLA's compiler estimates them, of one device; nothing is "
            "measured",
            soft_wrap=True,
        )


def _cells(report: Mapping[str, Any]) -> tuple[str, ...]:
    memory = report["peak_memory"]["HBM"]
    cycles = report["vsm_cycles"]
    return (
        "-" if cycles is None else f"{cycles:,}",
        _time(report["time_us"]),
        _time(report["least_time_us"]),
        _size(memory["bytes_per_cell"]),
        _size(memory["size_per_cell"]),
        "yes",
    )


def _failed(report: Mapping[str, Any]) -> tuple[str, ...]:
    return ("-", "-", "-", "-", "-", "no" if report["out_of_memory"] else "error")


def _remarks(report: Mapping[str, Any]) -> list[str]:
    if "error" in report:
        return [report["error"]]
    if report["cycles_missing"] is not None:
        return [f"no total: {report['cycles_missing']}; what is estimated sums to {report['modelled_cycles']:,}"]
    return [report["time_formula"]] if report["time_us"] is None else []


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds / 1e3:,.3f} ms" if microseconds >= 100 else f"{microseconds:.2f} µs"


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f} GiB" if size >= 2**26 else f"{size / 2**20:.2f} MiB"
