"""How good schedules are, and how fast: against the optimum of small graphs, the bound, and one another."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from growth import assert_linear
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.bounds import lower_bound
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.plan_options import SCHEDULERS, Scheduler
from pfvm.compiler.plan.planner import Plan, lay_out
from pfvm.compiler.plan.schedule import Schedule, moves, orders, policies, schedule
from pfvm.compiler.plan.schedule.incremental import Candidate, Run, resimulate, simulate
from pfvm.compiler.plan.schedule.problem import Buffer, Op, Problem
from pfvm.compiler.plan.schedule.search import auto_recompute_sa, spill_opt
from pfvm.compiler.plan.schedule.simulation import Simulation, Unschedulable
from pfvm.errors import UnsupportedOpError
from schedule_support import is_order, optimum, random_problem
from support import model as parse

MEMORIES = [(32, 32), (36, 36), (40, 40), (48,), (56,), (64,)]


def small(seed: int) -> Problem:
    rng = random.Random(seed)
    sizes = rng.choice([(2, 4, 8, 16), (4, 8, 16), (8, 8, 16)])
    return random_problem(seed, rng.randint(3, 9), rng.choice(MEMORIES), sizes=sizes)


def order_of(problem: Problem) -> list[int]:
    return orders.in_dram_order(problem, [b for b, buffer in enumerate(problem.buffers) if buffer.stored])


@pytest.mark.slow
def test_spill_opt_is_near_the_optimum_of_small_graphs() -> None:
    """200 graphs of up to 9 nodes. The optimum counts memory by its sum, so that no schedule may be better."""
    spilling = 0
    for seed in range(200):
        problem = small(seed)
        found, best = spill_opt(problem, order_of(problem)).cycles, optimum(problem)
        assert best is not None and best <= found <= 1.05 * best, f"seed {seed}: {found} against {best}"
        spilling += best > problem.compulsory_cycles()
    assert spilling > 20


BINARY, UNARY = ("Add", "Mul", "MatMul"), ("Relu", "Exp", "Softmax", "Transpose<perm=[1,0]>", "Identity")


def random_model(rng: random.Random) -> str:
    """Up to 9 nodes on square matrices; what nothing reads is an output."""
    names, lines, unread = ["x", "w"], [], set()
    for i in range(rng.randint(3, 9)):
        op = rng.choice(BINARY + UNARY)
        operands = [rng.choice(names[-5:]) for _ in range(2 if op in BINARY else 1)]
        lines.append(f"a{i} = {op}({', '.join(operands)})")
        unread = {*unread - {*operands}, f"a{i}"}
        names.append(f"a{i}")
    size = rng.choice([128, 256])
    inputs, outputs = (
        ", ".join(f"float[{size},{size}] {name}" for name in each) for each in (["x", "w"], sorted(unread))
    )
    head = '<ir_version: 10, opset_import: ["" : 20]>'
    return "\n".join([head, f"graph ({inputs}) => ({outputs})", "{", *lines, "}"])


def check_bound(seed: int) -> bool:
    """Does no scheduler give less than the bound? Returns whether one had to spill."""
    rng = random.Random(seed)
    text, budget, spilled = random_model(rng), rng.choice([0.004, 0.008, 0.02, None]), False
    for scheduler in SCHEDULERS:
        plan = lay_out(read_model(parse(text)), {})
        costs = CostModel(plan.machine)
        bounds = [lower_bound(plan.model, costs).cycles]
        found = schedule_within(plan, scheduler, budget)
        bounds.append(lower_bound(plan.model, costs).cycles)
        for bound in bounds:
            assert bound <= found.cycles <= found.serial_cycles, (seed, scheduler, bounds, found)
        spilled |= found.serial_cycles > found.compulsory_cycles
    return spilled


def schedule_within(plan: Plan, scheduler: Scheduler, budget: float | None) -> Schedule:
    """With prefetch, the reading that takes least; in all memory where the budget is too small."""
    try:
        return schedule(plan.model, plan.machine, scheduler, sram_budget=budget, search_steps=20, prefetch=True)
    except UnsupportedOpError:
        return schedule(plan.model, plan.machine, scheduler, search_steps=20, prefetch=True)


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_takes_less_than_the_bound(seed: int) -> None:
    check_bound(seed)


@pytest.mark.slow
def test_no_schedule_of_200_graphs_takes_less_than_the_bound() -> None:
    assert sum(check_bound(seed) for seed in range(200)) > 50


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("memories", [(64, 64), (96,)])
def test_every_scheduler_is_at_least_as_good_as_the_one_before(seed: int, memories: tuple[int, ...]) -> None:
    problem = random_problem(seed, 30, memories)
    start = order_of(problem)
    cycles = [
        Simulation(problem, start, policies.ALWAYS_FROM_DRAM).run().cycles,
        Simulation(problem, start, policies.REUSE_CONSECUTIVE).run().cycles,
        spill_opt(problem, start).cycles,
        auto_recompute_sa(problem, start, steps=40).cycles,
        problem.compulsory_cycles(),
    ]
    assert cycles == sorted(cycles, reverse=True)


def test_a_search_gives_no_more_cycles_than_dropping_what_the_next_node_does_not_read() -> None:
    """A problem where every way to evict by next use takes more."""
    problem = random_problem(8, 14, (48,))
    start = order_of(problem)
    plain = Simulation(problem, start, policies.REUSE_CONSECUTIVE).run().cycles
    assert all(Simulation(problem, start, policy).run().cycles > plain for policy in policies.KEEPING)
    assert spill_opt(problem, start).cycles <= plain
    assert auto_recompute_sa(problem, start, steps=0).cycles <= plain


def near_use(problem: Problem) -> list[int]:
    return orders.near_use(problem, order_of(problem))


@pytest.mark.parametrize(
    "order", [near_use, orders.depth_first, orders.least_live, lambda p: orders.least_live(p, late=True), order_of]
)
def test_orders_are_topological(order) -> None:
    for seed in range(20):
        problem = random_problem(seed, 80, (64, 64))
        assert is_order(problem, order(problem))


def test_recomputation_pays_where_a_value_is_cheap() -> None:
    """One value that an op of 4 cycles makes is read at both ends of a chain that fills the memory between."""
    buffers = [Buffer(8, True, False, 128, 128, 8), Buffer(16, False, False, 256, 256, 16)]
    ops = [Op((0,), (), (1,), cycles=4)]
    for i in range(6):
        size = 24 if i < 5 else 16
        buffers.append(Buffer(size, False, False, 16 * size, 16 * size, size))
        ops.append(Op((i + 1,), (), (i + 2,), cycles=64))
    buffers.append(Buffer(16, False, True, 256, 256, 16))
    ops.append(Op((7, 1), (), (8,), cycles=64))
    problem = Problem(tuple(ops), tuple(buffers), (60,), (False,), 2)
    kept, found = spill_opt(problem, order_of(problem)), auto_recompute_sa(problem, order_of(problem), steps=200)
    assert sum(step.kind == "run" for step in found.steps) == len(ops) + 1
    assert found.cycles < kept.cycles


@pytest.mark.parametrize("seed", range(12))
def test_a_candidate_simulated_in_part_is_the_whole_to_the_step(seed: int) -> None:
    """From random neighbour to random neighbour: what resembles a run already made is not simulated whole."""
    rng = random.Random(seed)
    problem = random_problem(seed, rng.choice([10, 30, 60, 120]), rng.choice([(48, 48), (64,)]))
    run = simulate(problem, Candidate(orders.least_live(problem), rng.choice(policies.KEEPING)))
    for _ in range(40):
        candidate = moves.propose(problem, run, moves.hot_spots(problem, run), rng)
        whole = None if candidate is None else outcome(lambda c=candidate: simulate(problem, c))
        part = None if candidate is None else outcome(lambda c=candidate, old=run: resimulate(problem, old, c))
        assert (whole is None) == (part is None)
        if whole is not None and part is not None:
            assert (whole.cycles, whole.excess, whole.steps) == (part.cycles, part.excess, part.steps)
            run = whole if rng.random() < 0.3 else part


def outcome(call: Callable[[], Run | None]) -> Run | None:
    try:
        return call()
    except Unschedulable:
        return None


def test_a_search_repeats_itself() -> None:
    problem = random_problem(3, 30, (40, 40))
    once, again = (auto_recompute_sa(problem, order_of(problem), steps=50, seed=7) for _ in range(2))
    assert once.steps == again.steps


def chain(nodes: int) -> str:
    ops = [f"Exp(a{i - 1})" if i % 3 else f"Add(a{i - 1}, a{max(i - 7, 0)})" for i in range(1, nodes)]
    lines = [f"a{i} = {op}" for i, op in enumerate(ops, 1)]
    head = '<ir_version: 10, opset_import: ["" : 20]>\ngraph (float[64,256] x) => (float[64,256] y)'
    return "\n".join([head, "{", "a0 = Relu(x)", *lines, f"y = Relu(a{nodes - 1})", "}"])


def scheduling(nodes: int) -> Callable[[], Schedule]:
    plan = lay_out(read_model(parse(chain(nodes))), {})
    return lambda: schedule(plan.model, plan.machine)


def test_time_is_linear_in_nodes() -> None:
    assert_linear(scheduling, 1000, limit=5)
