"""Topological orders of a scheduling problem."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .problem import Problem


def in_dram_order(problem: Problem, inputs: Sequence[int]) -> list[int]:
    """First the moves of each input, in the order in which the inputs lie in DRAM; then all other ops as they stand."""
    first: dict[int, None] = {}
    for buffer in inputs:
        waiting = [buffer]
        while waiting:
            for index in problem.consumers[waiting.pop()]:
                op = problem.ops[index]
                if op.moves and len(op.reads) == 1 and not op.streams and index not in first:
                    first[index] = None
                    waiting += op.writes
    return [*first, *(i for i in range(len(problem.ops)) if i not in first)]


def depth_first(problem: Problem) -> list[int]:
    """From each sink back: everything that an op reads, larger results first, then the op."""
    order: list[int] = []
    done: set[int] = set()
    weight = [sum(problem.buffers[b].size for b in op.writes) for op in problem.ops]
    for sink in range(len(problem.ops)):
        if problem.successors[sink]:
            continue
        stack = [(sink, False)]
        while stack:
            index, ready = stack.pop()
            if index in done:
                continue
            if ready:
                done.add(index)
                order.append(index)
                continue
            stack.append((index, True))
            waiting = [i for i in problem.predecessors[index] if i not in done]
            stack += [(i, False) for i in sorted(waiting, key=lambda i: (weight[i], -i))]
    return order


def least_live(problem: Problem, late: bool = False) -> list[int]:
    """Always the ready op that adds least to what is live; among equals the youngest (or the oldest) results first."""
    readers = [len(problem.consumers[b]) for b in range(len(problem.buffers))]
    missing = [len(before) for before in problem.predecessors]
    age = [0] * len(problem.ops)

    def growth(index: int) -> int:
        op = problem.ops[index]
        freed = sum(problem.buffers[b].size for b in op.reads if readers[b] == 1)
        return sum(problem.buffers[b].size for b in op.writes if problem.consumers[b]) - freed

    def entry(index: int) -> tuple[int, int, int]:
        return growth(index), age[index] if late else -age[index], index

    ready = [entry(i) for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    done: set[int] = set()
    while ready:
        _, _, index = key = heapq.heappop(ready)
        if index in done:
            continue
        if key != entry(index):
            heapq.heappush(ready, entry(index))
            continue
        done.add(index)
        order.append(index)
        for b in dict.fromkeys((*problem.ops[index].reads, *problem.ops[index].streams)):
            readers[b] -= 1
            if readers[b] == 1:  # its last reader now frees it: a better key than the one that waits
                for other in problem.consumers[b]:
                    if other not in done and not missing[other]:
                        heapq.heappush(ready, entry(other))
        for other in problem.successors[index]:
            missing[other] -= 1
            if not missing[other]:
                age[other] = len(order)
                heapq.heappush(ready, entry(other))
    return order


def near_use(problem: Problem, order: Sequence[int]) -> list[int]:
    """Of an order: what only re-lays or prepares operands of one op comes directly before it, and what nobody reads
    directly behind the last thing that it needs."""
    result = list(order)
    for index in reversed(order):
        at = result.index(index)
        readers = set(problem.successors[index])
        if readers and all(problem.buffers[b].stored for b in (*problem.ops[index].reads, *problem.ops[index].streams)):
            first = next(i for i in range(at + 1, len(result)) if result[i] in readers)
            result.insert(first, index)
            del result[at]
    for index in list(result):
        if not problem.successors[index]:
            at = result.index(index)
            needed = set(problem.predecessors[index])
            last = next((i for i in range(at - 1, -1, -1) if result[i] in needed), -1)
            del result[at]
            result.insert(last + 1, index)
    return result
