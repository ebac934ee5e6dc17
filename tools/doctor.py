"""`pfvm doctor`: what is installed, which devices are here and whether they compute right; for a bug report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pfvm.runtime.device import Device

    from .selftest import Result

_REPORT = (
    "For a bug report, paste all of this, the command that failed with what it printed under PFVM_DEBUG=1, and the "
    "model, or the smallest part of it that fails."
)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    selftest: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Compile and run a small model on each device.")
    ] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for the self-test.")] = 10.0,
) -> None:
    """Show what is installed, and test each device.

    Versions, devices, extras and the machine: what a bug report needs. Exits with 1 where a device fails its test.
    """
    from .console import print_json
    from .working import working

    with working("testing devices"):
        found = examine(selftest, timeout)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found["ok"]:
        raise typer.Exit(1)


def examine(selftest: bool = True, timeout: float = 10.0) -> dict[str, Any]:
    """Everything that the command prints. Loads no framework: devices are tested in processes of their own."""
    from pfvm.runtime.device import devices

    from . import surroundings
    from .selftest import check_devices

    known = devices()
    ready = [d.name for d in known if d.presence in ("present", "emulated") and d.platform != "auto"]
    tested = {result.device: result for result in check_devices(ready, timeout)} if selftest else {}
    tested |= {"mncore2:auto": tested["mncore2:emu"]} if "mncore2:emu" in tested else {}  # the same engine
    rows = [_device(device, tested.get(device.name)) for device in known]
    return {
        "ok": all(row["self_test"] is None or row["self_test"]["state"] != "failed" for row in rows),
        "versions": surroundings.versions(),
        "devices": rows,
        "extras": surroundings.extras(),
        "machine": surroundings.machine(),
        "cache": surroundings.cache(),
        "environment": surroundings.environment(),
        "installation": surroundings.installation(),
    }


def _device(device: Device, result: Result | None) -> dict[str, Any]:
    """state: what `pfvm devices` says, or absent, where the self-test finds libraries without a device."""
    state = "absent" if result is not None and result.state == "absent" else device.presence
    test = None if result is None else {key: value for key, value in result._asdict().items() if key != "device"}
    return {"name": device.name, "state": state, "advice": device.advice, "self_test": test}


def _print(found: dict[str, Any]) -> None:
    from .console import human_bytes, out, table

    console, machine, cache = out(), found["machine"], found["cache"]
    rows = table("package", "version")
    for name, version in found["versions"].items():
        rows.add_row(name, version or "-")
    console.print(rows, "")
    rows = table("device", "state", "self-test", "")
    for device in found["devices"]:
        rows.add_row(device["name"], device["state"], *_outcome(device))
    console.print(rows, "")
    rows = table("extra", "")
    for name, missing in found["extras"].items():
        rows.add_row(name, f"without {', '.join(missing)}: pip install 'pfvm[{name}]'" if missing else "installed")
    console.print(rows, "")
    folder = "off" if cache["folder"] is None else cache["folder"]
    kept = f"{cache['files']} programs, {human_bytes(cache['bytes'])}" if cache["writable"] else "cannot be written"
    for title, text in {
        "system": machine["system"],
        "processor": f"{machine['cpu']}, {machine['cores']} of {machine['cores_of_machine']} cores",
        "features": "unknown" if machine["features"] is None else " ".join(machine["features"]) or "none of interest",
        "memory": _memory(machine["memory_bytes"], machine["memory_available_bytes"]),
        "accelerators": ", ".join(machine["accelerators"]) or "none",
        "cache": folder if cache["folder"] is None else f"{folder}: {kept}",
        "environment": " ".join(f"{key}={value}" for key, value in found["environment"].items())
        or "nothing of interest",
        "python": found["installation"]["python"],
        "pfvm": found["installation"]["pfvm"],
    }.items():
        console.print(f"{title + ':':<14}{text}", soft_wrap=True)
    console.print("")
    console.print("; ".join(_verdicts(found["devices"])) or "no fault found", soft_wrap=True)
    console.print(_REPORT, soft_wrap=True)


def _verdicts(devices: list[dict[str, Any]]) -> Iterator[str]:
    for state in ("failed", "unfinished"):
        names = [device["name"] for device in devices if (device["self_test"] or {}).get("state") == state]
        if names:
            yield f"self-test {state}: {', '.join(names)}"


def _outcome(device: dict[str, Any]) -> tuple[str, str]:
    test = device["self_test"]
    if test is None:
        return "-", device["advice"]
    return f"{test['state']}, {test['seconds']:.1f} s", test["note"]


def _memory(total: int | None, available: int | None) -> str:
    from .console import human_bytes

    if total is None:
        return "unknown"
    return human_bytes(total) + ("" if available is None else f", {human_bytes(available)} available")
