"""`pfvm plan`: dtypes, layouts, places and times of a compiled model on a machine, as files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pfvm.errors import OptionError

if TYPE_CHECKING:
    from pfvm.compiler.plan.planner import Plan

_FLOATS = "Floating point values: float, half, or mixed, each in what it needs."


def plan(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The directory to write.", show_default=False)],
    machine: Annotated[str, typer.Option("--machine", help="A machine that is shipped, or a TOML file.")] = "mncore2",
    scheduler: Annotated[
        str,
        typer.Option(
            "--scheduler", help="always_from_dram, reuse_consecutive, spill_opt or auto_recompute_sa, which searches."
        ),
    ] = "reuse_consecutive",
    shape: Annotated[list[str], typer.Option("--shape", help="Shape of an input: x=1,3,224,224. Repeatable.")] = [],  # noqa: B006
    float_dtype: Annotated[str, typer.Option("--float-dtype", help=_FLOATS)] = "mixed",
    dtype: Annotated[
        list[str], typer.Option("--dtype", help="Of a value, or of the outputs of a node: NAME=Float. Repeatable.")
    ] = [],  # noqa: B006
    turn_weights: Annotated[
        bool,
        typer.Option("--turn-weights", help="Deal a product's weight and copy its data where that is cheaper."),
    ] = False,
    sram_budget: Annotated[
        float | None, typer.Option("--sram-budget", help="Part of each local memory that may be used, or long words.")
    ] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch", help="Count transfers from DRAM as running beside compute.")
    ] = False,
    search_steps: Annotated[int, typer.Option("--search-steps", help="Candidates that a search looks at.")] = 1000,
    time_budget: Annotated[
        float | None, typer.Option("--time-budget", help="Seconds after which a search stops.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of a search.")] = 0,
    unroll_limit: Annotated[int, typer.Option("--unroll-limit", help="Nodes that loops may unroll to.")] = 10_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a line.")] = False,
) -> None:
    """Plan a compiled model for a machine.

    Writes l3ir.txt, report.json and what belongs to them.
    """
    from pfvm.runtime.synthesis import parse_shapes

    from .console import print_json

    given = {name: value for name, value in locals().items() if name in _OPTIONS}
    given |= {"shapes": parse_shapes(shape), "dtypes": _dtypes(dtype)}
    start = time.perf_counter()
    planned = _planned(model, output, given)
    seconds = time.perf_counter() - start
    if as_json:
        print_json({"written": str(output), "nodes": len(planned.model.graph), "seconds": seconds, **planned.report})
    else:
        _print(planned, output, seconds)


_OPTIONS = frozenset(
    (
        *("machine", "scheduler", "float_dtype", "turn_weights", "sram_budget", "prefetch"),
        *("search_steps", "time_budget", "seed", "unroll_limit"),
    )
)


def _planned(model: Path, output: Path, options: dict[str, Any]) -> Plan:
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.plan.artifacts import write_artifacts
    from pfvm.compiler.plan.plan_options import PlanOptions
    from pfvm.compiler.plan.planner import plan as make_plan
    from pfvm.runtime.ort import evaluate

    from .working import working

    chosen = PlanOptions.parse(options)
    with working(f"planning {model} for {chosen.machine}"):
        planned = make_plan(read_model(model), chosen, evaluate)
        write_artifacts(planned, output)
    return planned


def _print(planned: Plan, output: Path, seconds: float) -> None:
    """One line of what was planned, and that nothing was measured."""
    from .console import err

    report = planned.report
    cycles, time_us = report["vsm_cycles"], report["time_us"]
    found = report["schedule"]
    searched = f", stopped by {found['stopped_by']}" if found.get("stopped_by") not in (None, "none") else ""
    err().print(
        f"{output}: {len(planned.model.graph)} nodes, {cycles:,} cycles by the cost model ({time_us:.1f} µs on "
        f"{planned.machine.title}; {planned.options.scheduler}{searched}), planned in {seconds:.1f} s",
        soft_wrap=True,
    )


def _dtypes(texts: Sequence[str]) -> dict[str, str]:
    """ "fc1=Float" → {"fc1": "Float"}. Raises OptionError."""
    dtypes = {}
    for text in texts:
        name, equals, dtype = text.rpartition("=")
        if not equals or not name or not dtype:
            raise OptionError(f"--dtype {text!r}: expected NODE=DTYPE as in fc1=Float")
        dtypes[name] = dtype
    return dtypes
