"""What the tests of the schedule share: a check of a scheduled graph that knows nothing of schedulers, random problems,
and the best schedule of a small problem."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Iterator, Sequence

import onnx_ir as ir
from pfvm.compiler.plan.addresses import dram_size
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import CAST, OUTPUT_CONCAT, REUSES, is_move
from pfvm.compiler.plan.ops.table import rule_of
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE, placement_of
from pfvm.compiler.plan.schedule.problem import Buffer, Op, Problem


def check_scheduled(model: ir.Model, machine: Machine) -> None:
    """Every value is placed inside its memory, no two live ones overlap, and every node has its operands where it needs
    them."""
    nodes = list(model.graph)
    roots = _roots(model)
    begin = dict.fromkeys((*model.graph.inputs, *model.graph.initializers.values()), -1)
    begin |= {out: time for time, node in enumerate(nodes) for out in node.outputs}
    end = dict(begin)
    for time, node in enumerate(nodes):
        for value in node.inputs:
            if value is not None:
                assert begin[value] < time, f"{value.name} is read before it is there"
                end[roots[value]] = max(end[roots[value]], time)
    for value in model.graph.outputs:
        assert placement_of(value).location in (DRAM, IMMEDIATE), f"output {value.name} is not in DRAM"
        end[roots[value]] = len(nodes)
    _check_room(machine, {value: (begin[value], end[value]) for value in begin if roots[value] is value})
    for node in nodes:
        _check_node(node, machine)


def _roots(model: ir.Model) -> dict[ir.Value, ir.Value]:
    roots = {value: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    for node in model.graph:
        for out in node.outputs:
            roots[out] = out
            if REUSES in node.metadata_props and node.op_type != OUTPUT_CONCAT:
                source, placed = placement_of(node.inputs[0]), placement_of(out)
                assert (placed.location, placed.address) == (source.location, source.address)
                assert placed.parent == node.inputs[0].name
                roots[out] = roots[node.inputs[0]]
            if node.op_type == OUTPUT_CONCAT:
                for part in node.inputs:
                    roots[part] = out
    return roots


def _check_room(machine: Machine, lives: dict[ir.Value, tuple[int, int]]) -> None:
    by_memory: dict[str, list[tuple[int, int, int, int, str]]] = {}
    for value, (begin, end) in lives.items():
        placed = placement_of(value)
        if placed.location == IMMEDIATE or placed.address is None:
            continue
        memory = machine.memory(placed.location)
        unit = memory.units_per_long_word
        if placed.location == DRAM:
            size = dram_size(placed, machine)
        else:
            size = placed.layout.num_lw(memory.granularity)
            assert placed.address % (unit * memory.granularity) == 0
        assert 0 <= placed.address <= (memory.size - size) * unit, f"{value.name} leaves {memory.name}"
        by_memory.setdefault(placed.location, []).append(
            (begin, end, placed.address, placed.address + size * unit, value.name)
        )
    for blocks in by_memory.values():
        blocks.sort()
        live: list[tuple[int, int, int, int, str]] = []
        for block in blocks:
            live = [other for other in live if other[1] >= block[0]]  # an operand is there while its reader writes
            for other in live:
                apart = other[3] <= block[2] or block[3] <= other[2]
                updates = other[0] == -1 and other[1] <= block[0]  # state, in place
                assert apart or updates, f"{block[4]} overlaps {other[4]}"
            live.append(block)


def _check_node(node: ir.Node, machine: Machine) -> None:
    if node.op_type in ("Constant", OUTPUT_CONCAT) or REUSES in node.metadata_props:
        return
    local = {memory.name: memory for memory in machine.local_memories}
    streams = {node.inputs[i] for i in rule_of(node).reads_dram(node)} if not is_move(node) else set()
    places = {placement_of(value).location for value in node.inputs if value is not None and value not in streams}
    places -= {IMMEDIATE}
    results = {placement_of(out).location for out in node.outputs}
    if is_move(node) and node.op_type != CAST:
        return
    if node.op_type == "Identity" and REUSES not in node.metadata_props:
        assert places <= set(local) and results <= set(local) and places != results
        return
    assert len(places) <= 1 and len(results) == 1 and places | results <= set(local), (
        f"{node.op_type}: {places}→{results}"
    )
    if places and len(local) > 1 and local[next(iter(places))].exclusive:
        assert places != results, f"{node.op_type} reads and writes {places}"


# ---- random problems, and their optimum


def random_problem(
    seed: int, nodes: int, memories: tuple[int, ...], exclusive: bool = True, sizes: tuple[int, ...] = (2, 4, 8, 16)
) -> Problem:
    """A random graph of ops with one or two operands, mostly recent ones; what nobody reads is an output."""
    rng = random.Random(seed)
    ops: list[Op] = []
    buffers: list[Buffer] = []

    def add(stored: bool) -> int:
        size = rng.choice(sizes)
        buffers.append(Buffer(size, stored, False, size * 16, size * 16, size))
        return len(buffers) - 1

    for _ in range(max(2, nodes // 6)):
        add(stored=True)
    for _ in range(nodes):
        known = range(len(buffers))
        near = known[-12:]
        reads = {rng.choice(near if rng.random() < 0.8 else known): None for _ in range(rng.choice([1, 1, 2]))}
        out = add(stored=False)
        ops.append(Op(tuple(reads), (), (out,), cycles=rng.choice([4, 16, 64]), moves=rng.random() < 0.15))
    read = {b for op in ops for b in op.reads}
    kept = [dataclasses.replace(buffer, kept=not buffer.stored and b not in read) for b, buffer in enumerate(buffers)]
    return Problem(tuple(ops), tuple(kept), memories, tuple(exclusive for _ in memories), 2)


State = tuple[frozenset[int], tuple[frozenset[int], ...], frozenset[int]]  # done, memories of each buffer, in DRAM


def optimum(problem: Problem, most: int = 100_000) -> float | None:
    """Cycles of the best schedule without recomputation: Dijkstra over everything that can be done between two ops.

    Distances are what is not compulsory: second downloads, spills, copies. Memory counts as full by its sum, not by its
    pieces. None where more than `most` states would be looked at.
    """
    stored = frozenset(b for b, buffer in enumerate(problem.buffers) if buffer.stored)
    start: State = (frozenset(), tuple(frozenset() for _ in problem.buffers), stored)
    best = {start: 0.0}
    numbers = itertools.count()
    queue = [(0.0, 0, start)]
    for _ in range(most):
        if not queue:
            return None
        cycles, _, state = heapq.heappop(queue)
        if best[state] < cycles:
            continue
        if len(state[0]) == len(problem.ops):
            return problem.compulsory_cycles() + cycles
        for cost, following in _steps(problem, state):
            if cycles + cost < best.get(following, float("inf")):
                best[following] = cycles + cost
                heapq.heappush(queue, (cycles + cost, next(numbers) + 1, following))
    return None


def _steps(problem: Problem, state: State) -> Iterator[tuple[float, State]]:
    done = state[0]
    for i, op in enumerate(problem.ops):
        if i not in done and done.issuperset(problem.predecessors[i]):
            for memory, target in problem.moving_pairs if op.moves else problem.computing_pairs:
                yield from _run(problem, i, (done | {i}, *state[1:]), memory, target)


def _run(problem: Problem, index: int, state: State, memory: int, target: int) -> Iterator[tuple[float, State]]:
    """Every way to run an op with its operands in `memory`: what else stays, where, and what goes."""
    op = problem.ops[index]
    done, where, stored = state
    needed = [any(i not in done for i in problem.consumers[b]) for b in range(len(problem.buffers))]
    missing = [b for b in op.reads if not where[b]]
    before = done - {index}
    loaded_first = {b for b in missing if problem.buffers[b].stored and before.isdisjoint(problem.consumers[b])}
    here = [b for b, places in enumerate(where) if places]
    again = [b for b in missing if b not in loaded_first]
    cost = sum(problem.buffers[b].download for b in again)
    fixed = [sum(problem.buffers[b].size for b in missing) if m == memory else 0 for m in range(len(problem.memories))]
    fixed[target] += sum(problem.buffers[b].size for b in op.writes)
    choices = [
        list(_choices(problem, b, where[b], b in stored, needed[b], memory if b in op.reads else None)) for b in here
    ]
    for chosen in itertools.product(*choices):
        used = list(fixed)
        for b, (places, _, _) in zip(here, chosen):
            for m in places:
                used[m] += problem.buffers[b].size
        if any(room > size for room, size in zip(used, problem.memories)):
            continue
        if any(
            used[m] + problem.buffers[b].size <= problem.memories[m]
            for b, (places, _, _) in zip(here, chosen)
            if needed[b]
            for m in where[b] - places
        ):
            continue  # what has room to stay may as well go later
        new = [frozenset[int]()] * len(where)
        in_dram = set(stored)
        total = cost
        for b, (places, uploaded, price) in zip(here, chosen):
            new[b] = places
            total += price
            if uploaded:
                in_dram.add(b)
        for b in missing:
            new[b] = frozenset({memory})
        for b in op.writes:
            new[b] = frozenset({target})
        for b, places in enumerate(new):
            if places and not needed[b]:
                if problem.buffers[b].kept:
                    in_dram.add(b)
                new[b] = frozenset()
        yield total, (done, tuple(new), frozenset(in_dram))


def _choices(
    problem: Problem, b: int, places: frozenset[int], stored: bool, needed: bool, must: int | None
) -> Iterator[tuple[frozenset[int], bool, float]]:
    """Where a buffer may be during the op: (memories, was it stored, cycles)."""
    buffer = problem.buffers[b]
    for count in range(len(problem.memories) + 1):
        for chosen in map(frozenset, itertools.combinations(range(len(problem.memories)), count)):
            if must is not None and must not in chosen:
                continue
            if must is None and not needed and chosen:
                continue  # only what is read again is worth a place
            new = chosen - places - {must}
            if new and len(chosen - {must}) > 1:
                continue  # a copy that nobody needs now is worth it only instead of another
            uploaded = not chosen and not stored and (needed or buffer.kept)
            spilled = uploaded and not buffer.kept
            yield chosen, uploaded, len(chosen - places) * buffer.copy + (buffer.upload if spilled else 0)


def is_order(problem: Problem, sequence: Sequence[int]) -> bool:
    """Is every op there, and after what it reads?"""
    seen: set[int] = set()
    for i in sequence:
        if not seen.issuperset(problem.predecessors[i]):
            return False
        seen.add(i)
    return len(seen) == len(problem.ops)
