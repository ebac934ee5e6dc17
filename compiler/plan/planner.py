"""The stages of a plan in order: prepare, dtypes, layouts, schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir
from pfvm.compiler import collector, progress
from pfvm.passes.constant_subgraph import Evaluate

from .alternatives import choose_layouts
from .dtypes import assign_dtypes
from .machine import Machine, load_machine
from .plan_options import PlanOptions
from .prepare import prepare
from .schedule.scheduler import local_limit, schedule


@dataclass
class Plan:
    """A planned graph (an MNGraph: nodes in scheduled order, every value placed) and what it was planned for.

    report: figures of the plan, empty until a report is made.
    """

    model: ir.Model
    machine: Machine
    options: PlanOptions
    report: dict[str, Any] = field(default_factory=dict)


@collector.paused()
def plan(
    model: ir.Model, options: PlanOptions | Mapping[str, Any] | None = None, evaluate: Evaluate | None = None
) -> Plan:
    """Plans a compiled model for a machine, on a copy.

    options: of PlanOptions, by name; every input has a fixed shape in the model or in their `shapes`.
    evaluate: runs constant subgraphs, from a model and its feeds to arrays by name.

    Raises OptionError, InputError or UnsupportedOpError for what cannot be planned, naming option, input or node.
    """
    progress.report("layouts")
    planned = lay_out(model, options, evaluate)
    chosen = planned.options
    progress.report("schedule")
    found = schedule(
        planned.model,
        planned.machine,
        chosen.scheduler,
        sram_budget=chosen.sram_budget,
        search_steps=chosen.search_steps,
        time_budget=chosen.time_budget,
        seed=chosen.seed,
        prefetch=chosen.prefetch,
    )
    planned.report["schedule"] = asdict(found)
    return planned


@collector.paused()
def lay_out(
    model: ir.Model, options: PlanOptions | Mapping[str, Any] | None = None, evaluate: Evaluate | None = None
) -> Plan:
    """The stages before the schedule: every value has a dtype and a layout, and nothing an address."""
    chosen = options if isinstance(options, PlanOptions) else PlanOptions.parse(options or {})
    machine = load_machine(chosen.machine)
    prepared = prepare(model, chosen.shapes, evaluate, chosen.unroll_limit)
    assign_dtypes(prepared, machine, chosen.float_dtype, chosen.dtypes)
    limit = local_limit(machine, chosen.sram_budget)
    return Plan(choose_layouts(prepared, machine, chosen.turn_weights, limit), machine, chosen)
