"""Stage 4 of a plan: an order, a place and an address for everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import GATHERED
from pfvm.compiler.plan.ops import contract
from pfvm.compiler.plan.ops.table import rule_of
from pfvm.compiler.plan.placement import placement_of
from pfvm.compiler.plan.plan_options import SCHEDULERS, Scheduler
from pfvm.compiler.plan.timeline import length, timeline
from pfvm.errors import OptionError, UnsupportedOpError, describe_node, did_you_mean, flag

from . import orders, policies
from .annealing import StoppedBy
from .emission import emit
from .problem import Problem
from .reading import NodeCycles, Reading, read_problem
from .search import Found, auto_recompute_sa, spill_opt
from .simulation import Policy, Simulation, Step, Unschedulable
from .slicing import slice_in_time, view_of


@dataclass(frozen=True)
class Schedule:
    """What a scheduler found. cycles: of all nodes and moves; with `prefetch` transfers from DRAM run beside compute
    where memory and paths are free, without it one after the other, as `serial_cycles` always are. Searches count
    serial cycles. candidates: simulations made.

    stopped_by: "steps" or "time" for a search, "none" for a scheduler that does not search. peak: long words live at
    most in each local memory. moves: how many of each kind it inserted. sliced: nodes
    that run in time slices.
    """

    scheduler: Scheduler
    cycles: float
    serial_cycles: float
    prefetch: bool
    compulsory_cycles: float
    candidates: int
    stopped_by: StoppedBy
    seconds: float
    peak: dict[str, int]
    moves: dict[str, int]
    sliced: int


def schedule(
    model: ir.Model,
    machine: Machine,
    scheduler: Scheduler = "reuse_consecutive",
    *,
    sram_budget: float | int | None = None,
    search_steps: int = 1000,
    time_budget: float | None = None,
    seed: int = 0,
    prefetch: bool = False,
) -> Schedule:
    """Schedules a model whose values have all been laid out, in place.

    sram_budget: how much of each local memory may be used, a part of it (up to 1) or long words. search_steps,
    time_budget (seconds), seed: of auto_recompute_sa. prefetch: count transfers from DRAM as running beside compute.
    Raises OptionError for a bad option and UnsupportedOpError, naming the node, where one does not fit.
    """
    if scheduler not in SCHEDULERS:
        near = did_you_mean(scheduler, SCHEDULERS)
        raise OptionError(f"no scheduler {scheduler!r}{near}; there are {', '.join(SCHEDULERS)}")
    begun = time.perf_counter()
    limit = local_limit(machine, sram_budget)
    room = limit or min(memory.size for memory in machine.local_memories)
    sliced = slice_in_time(model, machine, room, streamed_inputs)
    reading = read_problem(model, machine, streamed_inputs, node_cycles(machine), limit)
    try:
        found = _SCHEDULERS[scheduler](reading, model, search_steps, time_budget, seed)
    except Unschedulable as problem:
        raise _does_not_fit(reading, machine, problem, limit) from problem
    emit(model, machine, reading, found.steps)
    return Schedule(
        scheduler,
        length(timeline(model, CostModel(machine), prefetch=True)) if prefetch else found.cycles,
        found.cycles,
        prefetch,
        reading.problem.compulsory_cycles(),
        found.candidates,
        found.stopped_by,
        time.perf_counter() - begun,
        _peaks(machine, reading.problem, found.steps),
        _moves(found.steps),
        sliced,
    )


def local_limit(machine: Machine, sram_budget: float | int | None) -> int | None:
    """Long words of each local memory that a budget leaves; None for all. Raises OptionError."""
    if sram_budget is None:
        return None
    if sram_budget <= 0:
        raise OptionError(
            f"{flag('sram-budget')}: more than 0, a part of each local memory or long words; not {sram_budget}"
        )
    memory = min(machine.local_memories, key=lambda memory: memory.size)
    return int(sram_budget * memory.size) if sram_budget <= 1 else int(sram_budget)


def streamed_inputs(node: ir.Node) -> tuple[int, ...]:
    """The inputs that a node's rule may read from DRAM; those of a local product also once they are computed."""
    found = rule_of(node).reads_dram(node)
    product = rule_of(node).kind == "contract" and GATHERED not in node.metadata_props and contract.is_local(node)
    if product or rule_of(node).kind == "convolve":
        own = (i for i, value in enumerate(node.inputs) if i and value is not None and view_of(value) is None)
        found = tuple(dict.fromkeys((*found, *own)))
    return found


def node_cycles(machine: Machine) -> NodeCycles:
    """A machine's cost model, cycles alone."""
    model = CostModel(machine)
    return lambda node: model.node(node).cycles


# ---- the schedulers, each (reading, model, steps, time budget, seed) → what it found


def _fixed(policy: Policy) -> Callable[..., Found]:
    def run(reading: Reading, model: ir.Model, *_: object) -> Found:
        found = Simulation(reading.problem, start_order(reading, model), policy).run()
        return Found(found.cycles, found.steps, 1)

    return run


def _spill_opt(reading: Reading, model: ir.Model, steps: int, time_budget: float | None, seed: int) -> Found:
    return spill_opt(reading.problem, start_order(reading, model), seed)


def _auto_recompute_sa(reading: Reading, model: ir.Model, steps: int, time_budget: float | None, seed: int) -> Found:
    return auto_recompute_sa(reading.problem, start_order(reading, model), steps, time_budget, seed)


_SCHEDULERS: dict[str, Callable[..., Found]] = {
    "always_from_dram": _fixed(policies.ALWAYS_FROM_DRAM),
    "reuse_consecutive": _fixed(policies.REUSE_CONSECUTIVE),
    "spill_opt": _spill_opt,
    "auto_recompute_sa": _auto_recompute_sa,
}


def start_order(reading: Reading, model: ir.Model) -> list[int]:
    """The order that searches begin with: inputs by name, as they lie in DRAM, then the graph's own order."""
    graph = model.graph
    inputs = sorted((v for v in graph.inputs if v.name not in graph.initializers), key=lambda v: v.name or "")
    return orders.in_dram_order(
        reading.problem, [reading.buffer_of[value] for value in inputs if value in reading.buffer_of]
    )


# ---- figures and errors


def _peaks(machine: Machine, problem: Problem, steps: list[Step]) -> dict[str, int]:
    live = [0] * len(machine.local_memories)
    peak = list(live)
    sizes = [buffer.size for buffer in problem.buffers]
    for step in steps:
        if step.kind == "run":
            writes = problem.ops[step.subject].writes
            live[step.target] += sum(sizes[b] for b in writes)
        elif step.kind in ("download", "copy"):
            live[step.target] += sizes[step.subject]
        elif step.kind == "drop":
            live[step.memory] -= sizes[step.subject]
        peak = [max(a, b) for a, b in zip(peak, live)]
    return {memory.name: long_words for memory, long_words in zip(machine.local_memories, peak)}


def _moves(steps: list[Step]) -> dict[str, int]:
    kinds = [step.kind for step in steps]
    return {kind: kinds.count(kind) for kind in ("download", "upload", "copy")}


def _does_not_fit(reading: Reading, machine: Machine, problem: Unschedulable, limit: int | None) -> UnsupportedOpError:
    node, op = reading.nodes[problem.op], reading.problem.ops[problem.op]
    if not problem.fits:
        names = ", ".join(
            f"{reading.roots[b].name!r} {reading.problem.buffers[b].size} {placement_of(reading.roots[b]).layout}"
            for b in (*op.reads, *op.writes)
        )
        room = reading.problem.memories[0]
        why = f"of the {machine.local_memories[0].size} that the budget leaves" if limit else ""
        return UnsupportedOpError(
            f"{describe_node(node)} does not fit a local memory of {machine.name}: {room} long words {why}".rstrip()
            + f", and its operands and results take {names}; a smaller batch, "
            f"{flag('float-dtype', 'half')} or a larger budget would help"
        )
    raise AssertionError(
        f"{describe_node(node)} runs before its operand {reading.roots[problem.buffer].name!r} is there"
    )
