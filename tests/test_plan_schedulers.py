"""How good schedules are, and how fast: against the optimum of small graphs, the bound, and one another."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable

import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.planner import lay_out
from pfvm.compiler.plan.schedule import moves, orders, policies, schedule
from pfvm.compiler.plan.schedule.incremental import Candidate, Run, resimulate, simulate
from pfvm.compiler.plan.schedule.problem import Buffer, Op, Problem
from pfvm.compiler.plan.schedule.search import auto_recompute_sa, spill_opt
from pfvm.compiler.plan.schedule.simulation import Simulation, Unschedulable
from schedule_support import optimum, random_problem
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


def near_use(problem: Problem) -> list[int]:
    return orders.near_use(problem, order_of(problem))


@pytest.mark.parametrize(
    "order", [near_use, orders.depth_first, orders.least_live, lambda p: orders.least_live(p, late=True), order_of]
)
def test_orders_are_topological(order) -> None:
    for seed in range(20):
        problem = random_problem(seed, 80, (64, 64))
        assert problem.is_order(order(problem))


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


def seconds(nodes: int) -> float:
    plan = lay_out(read_model(parse(chain(nodes))), {})
    gc.collect()
    gc.disable()
    try:
        begun = time.process_time()
        schedule(plan.model, plan.machine)
        return time.process_time() - begun
    finally:
        gc.enable()


def test_time_is_linear_in_nodes() -> None:
    assert min(seconds(4000) for _ in range(2)) <= 5 * min(seconds(1000) for _ in range(3))
