"""What `pfvm compile` and `pfvm check` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import err, human_bytes, out

if TYPE_CHECKING:
    from pfvm.compiler.driver import CompileResult

    from .check import Report


def print_compiled(result: CompileResult, seconds: float, written: str) -> None:
    """One line on stderr: nodes and bytes before → after, seconds, where it went."""
    summary = result.summary()
    nodes, size = summary["nodes"], summary["bytes"]
    parts = []
    if nodes is not None:
        parts = [f"{nodes[0]} → {nodes[1]} nodes", f"{human_bytes(size[0])} → {human_bytes(size[1])} of constants"]
    parts += [f"{seconds:.2f} s", written]
    err().print(", ".join(parts), soft_wrap=True)


def print_check(report: Report) -> None:
    """The verdict first, then what supports it; warnings on stderr."""
    for line in check_lines(report):
        out().print(line, soft_wrap=True)
    for warning in report.warnings:
        err().print(f"warning: {warning}", soft_wrap=True)


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
    lines.append(f"  compared: {report.engine_a} and {report.engine_b}, on {', '.join(report.cases) or 'no inputs'}")
    lines.append(f"  tolerance: {report.tolerance}")
    return lines
