"""One model compiled for several TPU topologies, to choose hardware by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pfvm.errors import DeviceMemoryError, PfvmError

from .device import Device, device_files, load_executable

if TYPE_CHECKING:
    import onnx_ir as ir


def compile_for_each(
    model: ir.Model, devices: Sequence[Device], options: Mapping[str, Any], reports: dict[str, Any]
) -> dict[str, bytes]:
    """The compilers' files, in a folder for each topology ("v5e-1x1/report.json") where there are several.

    options: of load_executable. reports: gets the content of report.json by the device's name. Where one topology of
    several is too small or cannot be compiled for, its report is {"error": …, "out_of_memory": bool}. Raises PfvmError
    where there is only one, or all fail.
    """
    files: dict[str, bytes] = {}
    failures: list[PfvmError] = []
    for device in devices:
        try:
            executable = load_executable(model, device, **options)
            found = device_files(executable, device, dict)
        except PfvmError as error:
            if len(devices) == 1:
                raise
            failures.append(error)
            reports[device.name] = {"error": str(error), "out_of_memory": isinstance(error, DeviceMemoryError)}
            continue
        reports[device.name] = json.loads(found["report.json"])
        folder = "" if len(devices) == 1 else f"{(device.topology or '').replace(':', '-')}/"
        files.update({f"{folder}{name}": content for name, content in found.items()})
    if failures and len(failures) == len(devices):
        raise failures[0]
    return files
