"""What XLA's TPU compiler made of a program: its files, and report.json with cycles, time, memory and their sources."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from pfvm.compiler.plan.artifacts import to_json
from pfvm.compiler.plan.dump import print_l3ir
from pfvm.compiler.plan.report import SCHEMA_VERSION, rates
from pfvm.runtime.topology import Chip

from .ahead import AheadExecutable
from .artifacts import stripped
from .collectives import collectives_report
from .cycles import Estimate, estimate
from .origins import complete
from .scheduled import read_hlo

SOURCE = "compiler"
_NOTES = (
    "cycles are estimates of XLA's TPU compiler, nothing is measured: bodies of loops times their trips, the longest "
    "branch of conditionals, copies beside the rest not counted",
    "flops are those of convolutions and matrix products as compiled, 2 a multiply-add",
    "compiled without XLA's own attention kernel, for which it states no cycles",
    "indices out of range are not checked",
)
_FLOAT64 = "float64 is computed as float32, unless the precision is highest"


def files_of(executable: AheadExecutable, forms: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """Name and content of all files, report.json last. Compiles where that has not been done; raises what it raises.

    forms: what the model was compared with, for the report.
    """
    program = executable.program
    graph = read_hlo(program.hlo, [value.name or "" for value in executable.lowered.inputs], "HBM")
    text = print_l3ir(graph, None)
    complete(graph.graph, executable.model)
    return {
        "executable.bin": program.executable,
        "arguments.json": to_json(_interface(executable)),
        "scheduled_hlo.txt": program.hlo.encode(),
        "l3ir.txt": text.encode(),
        "l3ir_stripped.onnx.zst": stripped(graph),
        "report.json": to_json({**make_report(executable, graph), "forms": forms}),
    }


def make_report(executable: AheadExecutable, graph: ir.Model | None = None) -> dict[str, Any]:
    """The content of report.json, in the form of a plan's; null is what the compiler does not say."""
    program, topology = executable.program, executable.topology
    chip = topology.chip
    found = estimate(program.hlo)
    least = least_seconds(found, chip)
    cycles, missing = judged(found, chip)
    clock = None if chip.clock_hz is None else chip.clock_hz / 1e6
    flops, peak = found.total_flops, chip.peak_flops / 1e12
    scheduled = graph or read_hlo(program.hlo, (), "HBM")
    nodes = Counter(node.op_type for node in scheduled.graph.all_nodes())
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": {
            "name": f"{executable.name}{executable.mesh_text}",
            "title": f"{program.device_kind}, by XLA's compiler (libtpu {_version()})",
        },
        "emulated": False,
        "vsm_cycles": cycles,
        "cycles_source": SOURCE,
        "cycles_missing": missing,
        "modelled_cycles": found.modelled,
        "core_freq": clock,
        "flops": flops,
        **rates(cycles, clock, flops, peak),
        "time_formula": f"time = cycles / clock; {chip.formula}" if clock else f"no time: {chip.formula}",
        "least_time_us": None if least is None else least * 1e6,
        "precision": executable.precision,
        "bf16": executable.bf16,
        "effort": executable.effort,
        "topology": {
            "name": topology.name,
            "chips": topology.chips,
            "devices": topology.devices,
            "devices_used": executable.devices_used,
        },
        "prefetch": None,
        "schedule": {"scheduler": "xla", "stopped_by": None, "programs": 1},
        "nodes": dict(sorted(nodes.items())),
        "cycles": {"by_op": dict(found.by_op.most_common()), "by_path": None, "serial": None},
        "loops": found.loops,
        "conditionals": found.branches,
        "bytes_moved": {
            "accessed": found.moved,
            "copied_beside": found.beside,
            "without_cycles": sum(found.unmodelled_moves.values()),
        },
        "peak_memory": {"HBM": {"bytes_per_cell": _peak(executable), "size_per_cell": chip.hbm_bytes}},
        "memory": {key.removesuffix("_in_bytes"): size for key, size in sorted(program.memory.items())},
        "collectives": collectives_report([program.hlo]),
        "host": None,
        "lower_bound": _bound(cycles, least, chip),
        "readings": [],
        "options": None,
        "notes": [*_NOTES, *([_FLOAT64] if executable.precision != "highest" else [])],
        "figures": chip.sources(),
    }


def judged(found: Estimate, chip: Chip) -> tuple[int | None, str | None]:
    """The total, or None with the reason. One below what the chip's peak allows is none: something is not counted."""
    reason = found.reason()
    if reason is not None:
        return None, reason
    least = least_seconds(found, chip)
    if found.cycles is not None and least is not None and chip.clock_hz and found.cycles / chip.clock_hz < least:
        sum_us, least_us = found.cycles / chip.clock_hz * 1e6, least * 1e6
        return None, f"the sum of estimates, {sum_us:.1f} µs, is below flops / peak, {least_us:.1f} µs"
    return found.cycles, None


def least_seconds(found: Estimate, chip: Chip) -> float | None:
    """flops / peak of one device, each dtype at its own peak; None where trips are not known."""
    if found.flops is None:
        return None
    return sum(count / chip.peak_for(dtype) for dtype, count in found.flops.items())


def _interface(executable: AheadExecutable) -> dict[str, Any]:
    results = [value.name for value in executable.lowered.outputs]
    return {"schema_version": 1, "arguments": executable.arguments(), "results": results}


def _peak(executable: AheadExecutable) -> int:
    """The most bytes of HBM at one time: arguments, results, temporaries, shared memory counted once."""
    memory = executable.program.memory
    parts = memory["argument_size_in_bytes"] + memory["output_size_in_bytes"] + memory["temp_size_in_bytes"]
    return memory.get("peak_memory_in_bytes") or parts - memory["alias_size_in_bytes"]


def _bound(cycles: int | None, least: float | None, chip: Chip) -> dict[str, Any] | None:
    if least is None or chip.clock_hz is None or not least:
        return None
    bound = round(least * chip.clock_hz)
    resource = "matrix units at the published peak"
    ratio = cycles / bound if cycles is not None and bound else None
    return {"cycles": bound, "resource": resource, "by_resource": {resource: bound}, "ratio": ratio}


def _version() -> str:
    return importlib.metadata.version("libtpu")
