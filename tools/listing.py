"""`pfvm passes`, `pfvm ops`, `pfvm devices`: tables of what there is."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfvm import passes
from pfvm.passes import pipeline
from pfvm.runtime.device import device_ops, devices, host_ops, parse_device
from pfvm.runtime.topology import chips

from .console import out, print_json, table
from .official_failures import KNOWN_FAILURES, Failure


def print_passes(as_json: bool = False) -> None:
    """Each pass with the levels that run it, its options with defaults, and what it does.

    As JSON: [{"name", "levels": [int], "target", "options": {name: default}, "summary"}], in the order in which they
    run; target is the runtime for which alone a pass writes, or null.
    """
    found = [pass_entry(name) for name in pipeline.REGISTRY]
    if as_json:
        print_json(found)
        return
    rows = table("pass", "when", "options", "what it does")
    for each in found:
        options = ", ".join(f"{name}={default}" for name, default in each["options"].items())
        rows.add_row(each["name"], when(each), options or "-", each["summary"])
    out().print(rows)


def pass_entry(name: str) -> dict[str, Any]:
    """One pass as the JSON has it."""
    options, summary = describe_pass(name)
    return {
        "name": name,
        "levels": [level for level, names in pipeline.LEVELS.items() if name in names],
        "target": next((target for target, names in pipeline.TARGETS.items() if name in names), None),
        "options": dict(option.split("=", 1) for option in options),
        "summary": summary,
    }


def when(entry: dict[str, Any]) -> str:
    """What makes a pass run: O1,O2 are levels; a pass of no level and no target runs where -p names it."""
    if entry["target"] is not None:
        return {"tpu": "xla:tpu"}.get(entry["target"], f"--target {entry['target']}")
    return ",".join(f"O{level}" for level in entry["levels"]) or "-p only"


def describe_pass(name: str) -> tuple[list[str], str]:
    """Options ("slack=1024") and the docstring's first line, read from the source: to import it takes a second."""
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


def print_devices(as_json: bool = False) -> None:
    """Each device: present, compile-only, emulated, or missing and what to install.

    As JSON: [{"name", "status", "presence", "advice"}].
    """
    if as_json:
        fields = ("name", "status", "presence", "advice")
        print_json([{field: getattr(device, field) for field in fields} for device in devices()])
        return
    rows = table("device", "here", "what it is")
    for device in devices():
        rows.add_row(device.name, device.presence, device.advice)
    out().print(rows)
    shapes = ", ".join(f"{chip.name}:{'x'.join('XYZ'[: chip.dims])}" for chip in chips().values())
    out().print(f"TOPOLOGY is {shapes}; as in xla:tpu@v5e:2x2", soft_wrap=True)


def print_ops(device_name: str, as_json: bool = False) -> None:
    """Each operator that the device runs, with the opset versions from which it has a kernel or a lowering.

    Besides: the operators that run in host segments, and which of ONNX's own tests fail, each with the reason.
    As JSON: {"device", "operators": [{"domain", "name", "since": [opset]}], "host_operators": [{"domain", "name",
    "reason"}], "failing_tests": [{"test", "reason"}]}; domain "" is ai.onnx.
    """
    device = parse_device(device_name)
    ops, host = device_ops(device), host_ops(device)
    failures = KNOWN_FAILURES.get(device.name, ())
    if as_json:
        print_json(
            {
                "device": device_name,
                "operators": [{"domain": d, "name": n, "since": list(since)} for (d, n), since in ops.items()],
                "host_operators": [{"domain": d, "name": n, "reason": why} for (d, n), why in host.items()],
                "failing_tests": [{"test": test, "reason": each.why} for each in failures for test in each.tests],
            }
        )
        return
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
