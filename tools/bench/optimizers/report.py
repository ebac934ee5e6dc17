"""Optimizers on a model as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfvm.tools.console import err, out, table


def print_model(measured: Mapping[str, Any], optimizers: Sequence[str]) -> None:
    """The table of one model on stdout, with "–" for an optimizer that is not there; what failed below, on stderr."""
    shown = table(measured["model"], "cpu s", "s", "÷ load+save", "nodes", "MB", "latency ms", "÷ input's", "")
    first = [f"{measured['load_save_cpu_seconds']:.2f}", f"{measured['load_save_seconds']:.2f}", ""]
    size = f"{measured['bytes'] / 1e6:.1f}"
    latency = f"{measured['latency_seconds'] * 1e3:.2f}"
    shown.add_row("the file, loaded and saved", *first, str(measured["nodes"]), size, latency, "", "")
    rows = {each["optimizer"]: each for each in measured["results"]}
    for name in optimizers:
        shown.add_row(name, *_cells(rows.get(name), measured["load_save_cpu_seconds"]))
    out().print(shown)
    for each in measured["results"]:
        if each["error"] or each.get("differs") or each.get("latency_error"):
            err().print(f"{each['optimizer']}: {each['error'] or each.get('differs') or each['latency_error']}")


def _cells(row: Mapping[str, Any] | None, load_save: float) -> list[str]:
    if row is None:
        return ["–"] * 7 + ["not there"]
    cells = [f"{row['cpu_seconds']:.2f}", f"{row['seconds']:.2f}", f"{row['cpu_seconds'] / load_save:.1f}×"]
    if row["error"]:
        return [*cells, "", "", "", "", "error"]
    cells += [str(row["nodes"]), f"{row['bytes'] / 1e6:.1f}"]
    marks = ["wrong"] if row.get("differs") else []
    if row.get("latency_ratio") is None:
        return [*cells, "", "", ", ".join([*marks, "does not run"])]
    marks += [f"noisy: {'; '.join(row['noisy'])}"] if row["noisy"] else []
    return [*cells, f"{row['latency_seconds'] * 1e3:.2f}", f"{row['latency_ratio']:.3f}", ", ".join(marks)]


def print_chain(sizes: Sequence[Mapping[str, Any]], optimizers: Sequence[str]) -> None:
    """Seconds and nodes left, by size and optimizer."""
    shown = table("chain, nodes", "load+save", *optimizers)
    for measured in sizes:
        rows = {each["optimizer"]: each for each in measured["results"]}
        cells = [_chain_cell(rows.get(name)) for name in optimizers]
        shown.add_row(str(measured["nodes"]), f"{measured['load_save_cpu_seconds']:.2f} s", *cells)
    out().print(shown)


def _chain_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    return row["error"] or f"{row['cpu_seconds']:.2f} s → {row['nodes']}"
