"""What `pfvm compile` and `pfvm check` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .console import err, human_bytes, is_quiet, out, print_json

if TYPE_CHECKING:
    from pfvm.compiler.driver import CompileResult

    from .check import Report


def print_compiled(
    result: CompileResult,
    seconds: float,
    written: Sequence[str],
    as_json: bool = False,
    reports: Mapping[str, Any] | None = None,
    segments: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """On stderr, unless --quiet: one line with what was written, nodes and bytes, then a table.

    Or JSON: passes.json with "flops", "written", and "devices": the `reports` of xla:tpu@TOPOLOGY by device;
    with --explain "segments", as tools/segments.py gives them.
    """
    from .summary import CompiledTable, flops_json

    summary = result.summary()
    if as_json:
        devices = {"devices": dict(reports)} if reports else {}
        explained = {} if segments is None else {"segments": list(segments)}
        whole = {**summary, **flops_json(result), "seconds": seconds, "written": list(written), **devices, **explained}
        print_json(whole)
        return
    if is_quiet():
        return
    nodes, size = summary["nodes"], summary["bytes"]
    parts = []
    if nodes is not None:
        parts = [f"{nodes[0]} → {nodes[1]} nodes", f"{human_bytes(size[0])} → {human_bytes(size[1])} of constants"]
    parts += [f"{seconds:.2f} s", ", ".join(written) or "not written"]
    err().print(", ".join(parts), soft_wrap=True)
    if result.accuracy is not None:
        from pfvm.runtime.reduced import lines

        for line in lines(result.accuracy):
            err().print(line, soft_wrap=True)
    err().print(CompiledTable(result))


def print_check(report: Report, as_json: bool = False) -> None:
    """The verdict first, then what supports it; warnings on stderr, or in the JSON."""
    if as_json:
        print_json(check_json(report))
        return
    for line in check_lines(report):
        out().print(line, soft_wrap=True)
    for warning in report.warnings:
        err().print(f"warning: {warning}", soft_wrap=True)


def check_json(report: Report) -> dict[str, Any]:
    """A report as --json prints it. "case" and "difference" are of the first output that differs, else null."""
    found = report.difference
    return {
        "equal": report.equal,
        "signature": report.signature,
        "case": report.case if found is not None else None,
        "output": None if found is None else found.name,
        "difference": None if found is None else found.reason,
        "node": report.node,
        "node_note": report.node_note or None,
        "stages": report.stages,
        "engines": [report.engine_a, report.engine_b],
        "cases": report.cases,
        "tolerance": {"rtol": report.tolerance.rtol, "atol": report.tolerance.atol},
        "warnings": report.warnings,
    }


def check_lines(report: Report) -> list[str]:
    """The text of a report."""
    lines = ["equal" if report.equal else "not equal"]
    lines += [f"  signature: {line}" for line in report.signature]
    if report.difference is not None:
        lines.append(f"  with {report.case}: {report.difference}")
    if report.node is not None:
        lines.append(f"  first node that differs: {report.node}")
    elif report.node_note:
        lines.append(f"  first node that differs: {report.node_note}")
    lines += [f"  {line}" for line in report.stages]
    same = report.engine_a == report.engine_b
    engines = f"both by {report.engine_a}" if same else f"{report.engine_a} and {report.engine_b}"
    lines.append(f"  compared: {engines}, on {', '.join(report.cases) or 'no inputs'}")
    lines.append(f"  tolerance: {report.tolerance}")
    return lines
