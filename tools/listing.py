"""`pfvm passes`, `pfvm ops`, `pfvm devices`: tables of what there is."""

from __future__ import annotations

import dataclasses

from pfvm.errors import NotBuiltError
from pfvm.runtime.device import Device, devices, parse_device

from .console import err, out, table

# What ONNX Runtime's own layout optimizer writes; no file holds them.
_INTERNAL_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


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


def device_ops(device: Device) -> dict[tuple[str, str], tuple[int, ...]]:
    """(domain, operator) → opset versions at which a new kernel starts. Raises what `device.require` raises."""
    device.require()
    if device.backend == "xla":
        from pfvm.runtime.xla.registry import supported_ops

        return supported_ops()
    if device.backend == "pfvm":
        return _ort_ops()
    raise NotBuiltError(f"device {device.name} has no table of operators yet")


def _ort_ops() -> dict[tuple[str, str], tuple[int, ...]]:
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found: dict[tuple[str, str], set[int]] = {}
    for kernel in get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain not in _INTERNAL_DOMAINS:
            found.setdefault((kernel.domain, kernel.op_name), set()).add(kernel.version_range[0])
    return {key: tuple(sorted(found[key])) for key in sorted(found)}
