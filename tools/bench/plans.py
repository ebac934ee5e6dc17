"""`pfvm bench --plan`: schedulers on the same graphs, in cycles of the cost model, where local memory is short.

The budget of a graph: its peak live local memory is PRESSURE times what all local memories have together. Peak live is
what is alive at most when the graph runs in its own order and nothing is evicted, as if memory had no end. Where a node
has no schedule in so little, the budget is the least, in steps of STEP, that every scheduler can plan; the table says
which it was.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.plan_options import SCHEDULERS
from pfvm.compiler.plan.planner import Plan, lay_out, plan
from pfvm.compiler.plan.report import make_report
from pfvm.compiler.plan.schedule.reading import read_problem
from pfvm.compiler.plan.schedule.scheduler import node_cycles, start_order, streamed_inputs
from pfvm.compiler.signature import read_manifest
from pfvm.errors import OptionError, UnsupportedOpError
from pfvm.runtime.ort import evaluate
from pfvm.runtime.synthesis import parse_shapes
from pfvm.tools.console import err, out, table

from .files import write
from .plans_plot import cycles, plot_plans

PRESSURE = 1.5
STEP = 1.25

Shapes = Mapping[str, tuple[int, ...]]


class Graph(NamedTuple):
    """A compiled model, and the shapes of its inputs where it leaves them open."""

    model: ir.Model
    shapes: Shapes


class PlanRequest(NamedTuple):
    """The command's options. models: ONNX files, or Python files with `graphs() -> {name: (model, shapes)}`, where a
    model and its shapes may also be a function that returns them."""

    models: Sequence[Path]
    json_file: Path | None = None
    plot_file: Path | None = None
    shapes: Sequence[str] = ()
    machine: str = "mncore2"
    search_steps: int = 1000
    seed: int = 0
    command: Sequence[str] = ()


def bench_plans(request: PlanRequest) -> dict[str, Any]:
    """Plans every graph by every scheduler, prints a table, and returns what the JSON file has. Everything in it but
    `seconds` is the same each time. Raises OptionError, and what planning raises."""
    named = [pair for path in request.models for pair in _graphs(path, parse_shapes(request.shapes))]
    if not named:
        raise OptionError("bench --plan: no graphs")
    report: dict[str, Any] = {
        "command": list(request.command),
        "machine": request.machine,
        "search_steps": request.search_steps,
        "seed": request.seed,
        "pressure": PRESSURE,
        "graphs": [],
        "geometric_means": {},
    }
    for number, (name, make) in enumerate(named, 1):
        graph = make() if callable(make) else make
        report["graphs"].append(measure(name, Graph(*graph), request))
        report["geometric_means"] = means(report["graphs"])
        err().print(f"{number} of {len(named)}: {name}")
        _save(report, request)  # what there is, should it be stopped
    _print(report)
    return report


def _save(report: Mapping[str, Any], request: PlanRequest) -> None:
    if request.json_file is not None:
        write(request.json_file, json.dumps(report, indent=1) + "\n")
    if request.plot_file is not None:
        write(request.plot_file, plot_plans(report))


def measure(name: str, graph: Graph, request: PlanRequest) -> dict[str, Any]:
    """The figures of one graph."""
    options = {"machine": request.machine, "shapes": dict(graph.shapes), "seed": request.seed}
    options["search_steps"] = request.search_steps
    laid_out = lay_out(graph.model, options, evaluate)
    peak, memories = peak_live(laid_out), laid_out.machine.local_memories
    budget = math.ceil(peak / PRESSURE / len(memories))
    size = min(memory.size for memory in memories)
    wanted = budget = max(2, min(budget, size))
    while True:
        try:
            found = {s: _planned(graph, {**options, "scheduler": s, "sram_budget": budget}) for s in SCHEDULERS}
            break
        except UnsupportedOpError:
            if budget >= size:
                raise
            budget = min(size, math.ceil(budget * STEP))
    return {
        "graph": name,
        "nodes": len(laid_out.model.graph),
        "training": any(entry.output for entry in read_manifest(graph.model)),
        "peak_live": peak,
        "budget": budget,
        "budget_wanted": wanted,
        "pressure": peak / budget / len(memories),
        "bound": max(figures["bound"] for figures in found.values()),
        "schedulers": found,
    }


def peak_live(laid_out: Plan) -> int:
    """Long words that are alive at most in the local memories of a cell, in the graph's own order."""
    model, machine = laid_out.model, laid_out.machine
    reading = read_problem(model, machine, streamed_inputs, node_cycles(machine))
    problem = reading.problem
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time_, i in enumerate(start_order(reading, model)):
        op = problem.ops[i]
        for b in (*op.reads, *op.writes):
            first.setdefault(b, time_)
            last[b] = time_
    changes = [0] * (len(problem.ops) + 1)
    for b, begin in first.items():
        changes[begin] += problem.buffers[b].size
        changes[last[b] + 1] -= problem.buffers[b].size
    peak = live = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Geometric means of the ratios that are promised, and of how far the best is from the bound."""
    training = [row for row in rows if row["training"]]
    ratios = {
        "spill_opt/reuse_consecutive": [cycles(row, "spill_opt") / cycles(row, "reuse_consecutive") for row in rows],
        "auto_recompute_sa/spill_opt": [_of_the_search(row) for row in rows],
        "auto_recompute_sa/spill_opt, training": [_of_the_search(row) for row in training],
        "auto_recompute_sa/bound": [cycles(row, "auto_recompute_sa") / row["bound"] for row in rows],
    }
    return {name: math.exp(math.fsum(map(math.log, each)) / len(each)) for name, each in ratios.items() if each}


def _of_the_search(row: Mapping[str, Any]) -> float:
    return cycles(row, "auto_recompute_sa") / cycles(row, "spill_opt")


def _planned(graph: Graph, options: Mapping[str, Any]) -> dict[str, Any]:
    begun = time.process_time()
    planned = plan(graph.model, options, evaluate)
    seconds = time.process_time() - begun
    schedule = planned.report["schedule"]
    report = make_report(planned.model, planned.machine, schedule=schedule, costs=CostModel(planned.machine))
    return {
        "cycles": report["vsm_cycles"],
        "bound": report["lower_bound"]["cycles"],
        "sliced": schedule["sliced"],
        "candidates": schedule["candidates"],
        "stopped_by": schedule["stopped_by"],
        "seconds": round(seconds, 2),
    }


def _graphs(path: Path, shapes: Shapes) -> list[tuple[str, Any]]:
    if path.suffix != ".py":
        return [(path.name, lambda: Graph(read_model(path), shapes))]
    if not path.is_file():
        raise OptionError(f"bench --plan: no file {path}")
    sys.path.insert(0, str(path.resolve().parent))  # it may import what lies beside it, as a script does
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "graphs"):
        raise OptionError(f"bench --plan {path}: it has no function graphs()")
    return list(module.graphs().items())


def _print(report: Mapping[str, Any]) -> None:
    shown = table("graph", "nodes", "budget", "peak ÷ it", "bound", *SCHEDULERS, "spill ÷ reuse", "sa ÷ spill")
    for row in report["graphs"]:
        ratios = [cycles(row, "spill_opt") / cycles(row, "reuse_consecutive"), _of_the_search(row)]
        shown.add_row(
            *(row["graph"], str(row["nodes"]), str(row["budget"]), f"{row['pressure']:.2f}", f"{row['bound']:,}"),
            *(f"{cycles(row, s):,}" for s in SCHEDULERS),
            *(f"{ratio:.3f}" for ratio in ratios),
        )
    out().print(shown)
    for name, value in report["geometric_means"].items():
        out().print(f"geometric mean {name}: {value:.3f}")
