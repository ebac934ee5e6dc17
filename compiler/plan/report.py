"""report.json: the figures of a plan. What is not known is null, never 0.

`vsm_cycles`, `core_freq` (MHz) and `flops` have the names and meaning of MLSDK's reports; the figures are those of the
cost model, `emulated` says so, and `notes` and `readings` say what it takes as given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from .addresses import dram_size
from .bounds import LowerBound, is_recomputed, lower_bound, totals
from .cost import CostModel
from .dump import l3ir_nodes
from .liveness import blocks, peaks
from .machine import Machine
from .ops.table import dims, rule_of
from .placement import DRAM, find_placement
from .readings import readings
from .state import STATE
from .timeline import length, timeline

SCHEMA_VERSION = 1
NOTES = (
    "cycles are sums over the nodes; inside a node its transfers and units are pipelined, and the busiest one counts",
    "a latency that no source states is 0",
    "nothing is fitted to measured or published totals",
)
PREFETCH_NOTE = "with prefetch, transfers from DRAM run beside other nodes where memory and paths are free"


def make_report(
    model: ir.Model,
    machine: Machine,
    *,
    prefetch: bool = False,
    schedule: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    costs: CostModel | None = None,
) -> dict[str, Any]:
    """The content of report.json for a scheduled MNGraph.

    schedule: what the scheduler says of itself (`scheduler`, `stopped_by`, `candidates`, …). options: those of the
    plan. Raises InvalidModelError where a value has no placement.
    """
    costs = costs or CostModel(machine)
    sums = totals(model, costs)
    cycles = length(timeline(model, costs, prefetch)) if prefetch else sums.cycles
    bound = lower_bound(model, costs)
    flops = sum(rule_of(node).flops(node) for node in model.graph if not is_recomputed(node))
    given = {key: value for key, value in (schedule or {}).items() if key != "seconds"}  # the same bytes every time
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": {"name": machine.name, "title": machine.title},
        "emulated": True,
        "vsm_cycles": cycles,
        "core_freq": machine.clock_mhz,
        "flops": flops,
        **rates(cycles, machine.clock_mhz, flops, peak_tflops(machine)),
        "prefetch": prefetch,
        "schedule": {"scheduler": None, "stopped_by": None, **given},
        "nodes": _counts(model),
        "cycles": {
            "by_op": sums.by_op,
            "by_path": dict(sorted(sums.cost.busy.items())),
            "serial": sums.cost.serial,
        },
        "bytes_moved": {path: words * machine.long_word_bits // 8 for path, words in sorted(sums.cost.words.items())},
        "peak_memory": _peak_memory(model, machine),
        "host": _host(model, machine),
        "lower_bound": _bound(bound, cycles),
        "readings": _readings(model, machine, prefetch),
        "options": None if options is None else dict(options),
        "notes": [*NOTES, *([PREFETCH_NOTE] if prefetch else [])],
    }


def rates(
    cycles: int | None, clock_mhz: float | None, flops: int | None, peak: float | None
) -> dict[str, float | None]:
    """time_us, tflops, and efficiency as a part of the peak; None where a figure that they need is."""
    time_us = cycles / clock_mhz if cycles is not None and clock_mhz else None
    tflops = flops / time_us / 1e6 if flops is not None and time_us else None
    efficiency = tflops / peak if tflops is not None and peak else None
    return {"time_us": time_us, "tflops": tflops, "efficiency": efficiency, "peak_tflops": peak}


def peak_tflops(machine: Machine) -> float:
    """The fastest mode of all matrix units, 2 operations per multiply-add."""
    fastest = max(mode.inputs * mode.outputs for mode in machine.matrix_unit.modes.values())
    return 2 * fastest * machine.cells(machine.matrix_unit.level) * machine.clock_mhz / 1e6


def _counts(model: ir.Model) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in model.graph:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return dict(sorted(counts.items()))


def _peak_memory(model: ir.Model, machine: Machine) -> dict[str, dict[str, int | None]]:
    """By memory: the most bytes that are live at one time in each cell, and the size."""
    found = peaks(blocks(l3ir_nodes(model, machine), machine))
    word = machine.long_word_bits // 8
    return {
        memory.name: {
            "bytes_per_cell": found[memory.name] * word // memory.units_per_long_word if memory.name in found else None,
            "size_per_cell": memory.size * word,
        }
        for memory in machine.memories
    }


def _host(model: ir.Model, machine: Machine) -> dict[str, float | int | None]:
    """Transfers between host and DRAM of inputs and outputs; not part of vsm_cycles. Weights and state stay there."""
    stays = {out.metadata_props[STATE] for out in model.graph.outputs if STATE in out.metadata_props}
    stays.update(model.graph.initializers)
    words_in = _dram_words([value for value in model.graph.inputs if value.name not in stays], machine)
    words_out = _dram_words([out for out in model.graph.outputs if STATE not in out.metadata_props], machine)
    path = next((path for path in machine.paths if (path.source_memory, path.target_memory) == ("host", DRAM)), None)
    back = next((path for path in machine.paths if (path.source_memory, path.target_memory) == (DRAM, "host")), path)
    bits = machine.long_word_bits // 8 * machine.cells(machine.memory(DRAM).level)
    cycles = None
    if path is not None and back is not None and words_in is not None and words_out is not None:
        cycles = words_in / path.rate + words_out / back.rate
    return {
        "bytes_in": None if words_in is None else words_in * bits,
        "bytes_out": None if words_out is None else words_out * bits,
        "cycles": cycles,
        "time_us": None if cycles is None else cycles / machine.clock_mhz,
    }


def _dram_words(values: Sequence[ir.Value], machine: Machine) -> int | None:
    """Long words of each cell with DRAM; None where a value's place is not known."""
    total = 0
    for value in values:
        placement = find_placement(value)
        if placement is None:
            if 0 in dims(value) or not value.uses():
                continue
            return None
        total += dram_size(placement, machine)
    return total


def _bound(bound: LowerBound, cycles: int) -> dict[str, Any]:
    return {
        "cycles": bound.cycles,
        "resource": bound.resource or None,
        "by_resource": bound.by_resource,
        "ratio": cycles / bound.cycles if bound.cycles else None,
    }


def _readings(model: ir.Model, machine: Machine, prefetch: bool) -> list[dict[str, Any]]:
    """Totals of this schedule under every reading of a figure that the sources leave open."""
    in_force: dict[str, int] | None = None
    result = []
    for entry in machine.ambiguous:
        cycles = {}
        for name, other in readings(machine, entry).items():
            if other != machine or in_force is None:
                costs = CostModel(other)
                sums = totals(model, costs)
                count = length(timeline(model, costs, True)) if prefetch else sums.cycles
                cycles[name] = {"vsm_cycles": count, "serial": sums.cost.serial}
            else:
                cycles[name] = in_force
            if other == machine:
                in_force = cycles[name]
        result.append({"key": entry.key, "about": entry.about, "readings": cycles})
    return result
