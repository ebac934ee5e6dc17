"""`pfvm passes`, `pfvm ops`, `pfvm devices`: tables of what there is."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from pfvm.runtime.device import device_ops, devices, host_ops, parse_device

from .console import out, table
from .official_failures import KNOWN_FAILURES, Failure


def print_passes() -> None:
    """Each pass with the levels that run it, its options with defaults, and what it does."""
    from pfvm.passes import pipeline

    rows = table("pass", "levels", "options", "what it does")
    for name in pipeline.REGISTRY:
        levels = ",".join(f"O{level}" for level, names in pipeline.LEVELS.items() if name in names)
        options, summary = describe_pass(name)
        rows.add_row(name, levels or "-p only", ", ".join(options) or "-", summary)
    out().print(rows)


def describe_pass(name: str) -> tuple[list[str], str]:
    """Options ("slack=1024") and the docstring's first line, read from the source: to import it takes a second."""
    from pfvm import passes
    from pfvm.passes import pipeline

    module, _, class_name = pipeline.REGISTRY[name].partition(":")
    source = Path(passes.__path__[0], f"{module}.py").read_text(encoding="utf-8")
    found = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == class_name)
    options = [
        f"{field.target.id}={ast.unparse(field.value) if field.value else ast.unparse(field.annotation)}"
        for field in found.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not ast.unparse(field.annotation).startswith("ClassVar")
    ]
    return options, (ast.get_docstring(found) or "").partition("\n")[0]


def print_devices() -> None:
    """Each device with its status and what to install."""
    rows = table("device", "status", "what it is")
    for device in devices():
        rows.add_row(device.name, device.status, device.advice)
    out().print(rows)


def print_ops(device_name: str) -> None:
    """Each operator that the device runs, with the opset versions from which it has a kernel or a lowering.

    Besides: the operators that run in host segments, and which of ONNX's own tests fail, each with the reason.
    """
    device = parse_device(device_name)
    ops, host = device_ops(device), host_ops(device)
    failures = KNOWN_FAILURES.get(device.name, ())
    if failures:
        print_failures(failures)
    if host:
        rows = table("operator", "in a host segment")
        for op, why in host.items():
            rows.add_row(_full_name(*op), why)
        out().print(rows)
        out().print("")
    rows = table("operator", "since opset")
    for op, versions in ops.items():
        rows.add_row(_full_name(*op), ", ".join(map(str, versions)))
    out().print(rows)
    more = f", and {len(host)} in host segments" if host else ""
    out().print(f"{len(ops)} operators on {device_name}{more}")


def print_failures(failures: Sequence[Failure]) -> None:
    """The tests of the official suite that fail, one a line."""
    rows = table("official test that fails", "why")
    for failure in failures:
        for name in failure.tests:
            rows.add_row(name, failure.why)
    out().print(rows)
    out().print("")


def _full_name(domain: str, op_type: str) -> str:
    return f"{domain}::{op_type}" if domain else op_type
