"""`pfvm passes`, `pfvm ops`, `pfvm devices`: tables of what there is."""

from __future__ import annotations

import dataclasses

from pfvm.runtime.device import device_ops, devices, parse_device

from .console import err, out, table


def print_passes() -> None:
    """Each pass with the levels that run it, its options with defaults, and what it does."""
    from pfvm.passes import pipeline

    rows = table("pass", "levels", "options", "")
    for name in pipeline.REGISTRY:
        cls = pipeline.load(name)
        levels = ",".join(f"O{level}" for level, names in pipeline.LEVELS.items() if name in names)
        options = ", ".join(f"{f.name}={_default(f)}" for f in dataclasses.fields(cls))
        rows.add_row(name, levels or "-p only", options, (cls.__doc__ or "").strip().splitlines()[0])
    out().print(rows)


def _default(field: dataclasses.Field) -> str:
    return str(field.type if field.default is dataclasses.MISSING else field.default)


def print_devices() -> None:
    """Each device with its status and what to install."""
    rows = table("device", "status", "")
    for device in devices():
        rows.add_row(device.name, device.status, device.advice)
    out().print(rows)


def print_ops(device_name: str) -> None:
    """Each operator that the device runs, with the opset versions from which it has a kernel or a lowering."""
    ops = device_ops(parse_device(device_name))
    rows = table("operator", "since opset")
    for (domain, op_type), versions in ops.items():
        rows.add_row(f"{domain}::{op_type}" if domain else op_type, ", ".join(map(str, versions)))
    out().print(rows)
    err().print(f"{len(ops)} operators on {device_name}")
