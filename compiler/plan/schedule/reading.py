"""Reads the scheduling problem off a laid-out MNGraph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx_ir as ir
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import (
    CAST,
    DOWNLOAD,
    INPUT_SPLIT,
    LAYOUT_SWITCH,
    OUTPUT_CONCAT,
    REUSES,
    UPLOAD,
    is_move,
    move_node,
    values,
)
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE, Placement, find_placement, move, place, placement_of
from pfvm.errors import InvalidModelError, describe_node
from pfvm.passes.effects import Effect, effect

from .problem import Buffer, Op, Problem

NodeCycles = Callable[[ir.Node], float]
StreamedInputs = Callable[[ir.Node], Collection[int]]


@dataclass
class Reading:
    """A problem and what its numbers stand for in the graph.

    roots: the value of each buffer. nodes: the node of each op. operands: the inputs of every node before the schedule
    changes them. views: the value of a reuse node → that node. splits: buffer → the node that reads its slice.
    """

    problem: Problem
    roots: list[ir.Value]
    nodes: list[ir.Node]
    head: list[ir.Node]
    operands: dict[ir.Node, tuple[ir.Value | None, ...]]
    buffer_of: dict[ir.Value, int]
    views: dict[ir.Value, ir.Node] = field(default_factory=dict)
    splits: dict[int, ir.Node] = field(default_factory=dict)

    def streamed(self, node: ir.Node, op: Op) -> set[int]:
        """Which inputs of an op's node are read from DRAM."""
        return {
            i
            for i, value in enumerate(self.operands[node])
            if value is not None and self.buffer_of.get(value) in op.streams and self.buffer_of[value] not in op.reads
        }


def read_problem(
    model: ir.Model, machine: Machine, streams: StreamedInputs, cycles: NodeCycles, limit: int | None = None
) -> Reading:
    """The problem of a model whose values have all been laid out.

    streams: which inputs of a node may be read from DRAM: those that lie there are, and those that have been computed
    where they would not fit beside the other operands. limit: long words of each local memory that may be used.
    Raises InvalidModelError where a value has no placement.
    """
    sizes = [memory.size if limit is None else min(limit, memory.size) for memory in machine.local_memories]
    return _Reader(model, machine, streams, cycles, min(sizes)).read(tuple(sizes))


class _Reader:
    def __init__(
        self, model: ir.Model, machine: Machine, streams: StreamedInputs, cycles: NodeCycles, limit: int
    ) -> None:
        self.model, self.machine, self.streams, self.cycles = model, machine, streams, cycles
        self.limit = limit
        self.granularity = max(memory.granularity for memory in machine.local_memories)
        self.here = machine.local_memories[0].name
        self.there = machine.local_memories[-1].name
        self.roots: list[ir.Value] = []
        self.reading = Reading(Problem((), (), (), ()), self.roots, [], [], {}, {})

    def read(self, sizes: tuple[int, ...]) -> Reading:
        result = self.reading
        ops: list[Op] = []
        for value in (*self.model.graph.inputs, *self.model.graph.initializers.values()):
            if find_placement(value) is not None and value not in result.buffer_of:
                self._root(value)
        for node in self.model.graph:
            result.operands[node] = tuple(node.inputs)
            if self._is_head(node):
                result.head.append(node)
            elif REUSES in node.metadata_props and not _is_concat(node):
                self._view(node)
            elif node.op_type == INPUT_SPLIT and is_move(node):
                result.splits[self._root(node.outputs[0])] = node
            else:
                ops.append(self._op(node))
                result.nodes.append(node)
        kept = {result.buffer_of[value] for value in self.model.graph.outputs if value in result.buffer_of}
        with _restoring(self.model):
            buffers = tuple(self._buffer(b, b in kept) for b in range(len(self.roots)))
            ops = [self._costed(op, node) for op, node in zip(ops, result.nodes)]
        memories = self.machine.local_memories
        result.problem = Problem(
            tuple(ops),
            buffers,
            sizes,
            tuple(memory.exclusive for memory in memories),
            self.granularity,
        )
        return result

    def _is_head(self, node: ir.Node) -> bool:
        """Constants inside the program, and what is said again of them."""
        placements = [find_placement(out) for out in node.outputs]
        return any(placement is not None and placement.location == IMMEDIATE for placement in placements)

    def _root(self, value: ir.Value) -> int:
        if placement_of(value).location == IMMEDIATE:
            return -1
        self.reading.buffer_of[value] = len(self.roots)
        self.roots.append(value)
        return len(self.roots) - 1

    def _buffer_of(self, value: ir.Value, node: ir.Node) -> int | None:
        """None: a constant inside the program."""
        found = self.reading.buffer_of.get(value)
        if found is None and placement_of(value).location != IMMEDIATE:
            raise InvalidModelError(f"{describe_node(node)}: its operand {value.name!r} is made by a later node")
        return found

    def _view(self, node: ir.Node) -> None:
        source, out = node.inputs[0], node.outputs[0]
        buffer = None if source is None else self._buffer_of(source, node)
        if buffer is None:
            raise InvalidModelError(f"{describe_node(node)}: a reuse node's operand is no value in a memory")
        self.reading.buffer_of[out] = buffer
        self.reading.views[out] = node

    def _op(self, node: ir.Node) -> Op:
        if _is_concat(node):
            slices = tuple(self.reading.buffer_of[value] for value in node.inputs if value is not None)
            return Op((), slices, (), stores=(self._root(node.outputs[0]),), moves=True)
        buffers = [None if value is None else self._buffer_of(value, node) for value in node.inputs]
        may_stream = {b for i in self.streams(node) if (b := buffers[i]) is not None}
        streams = {b: None for b in may_stream if placement_of(self.roots[b]).location == DRAM}
        reads = {b: None for b in buffers if b is not None and b not in streams}
        for b in sorted(may_stream, key=lambda b: (-self._size(b), b)):
            if b in reads and sum(map(self._size, reads)) > self.limit:
                del reads[b]
                streams[b] = None
        for b in reads:
            split = self.reading.splits.get(b)
            if split is not None and split.inputs[0] is not None:
                streams[self.reading.buffer_of[split.inputs[0]]] = None
        writes = tuple(self._root(out) for out in node.outputs if find_placement(out) is not None)
        if self._goes_to_dram(node):
            return Op(tuple(reads), tuple(b for b in streams if b not in reads), (), stores=writes, moves=True)
        through = is_move(node) and node.op_type != CAST
        return Op(
            tuple(reads),
            tuple(b for b in streams if b not in reads),
            writes,
            moves=through,
            repeatable=is_pure(node, self.model),
        )

    def _goes_to_dram(self, node: ir.Node) -> bool:
        """A re-laid value that fits no local memory and that all its readers may read from DRAM is stored there."""
        if node.op_type != LAYOUT_SWITCH or not is_move(node):
            return False
        out = node.outputs[0]
        if out.is_graph_output() or placement_of(out).layout.num_lw(self.granularity) <= self.limit:
            return False
        return all(index in self.streams(reader) for reader, index in out.uses())

    def _size(self, buffer: int) -> int:
        return placement_of(self.roots[buffer]).layout.num_lw(self.granularity)

    # ---- costs, asked for with every value where it will be

    def _buffer(self, number: int, kept: bool) -> Buffer:
        value = self.roots[number]
        placement = placement_of(value)
        node = self.reading.splits.get(number)
        stored = placement.location == DRAM or node is not None
        size = self._size(number)
        download = self._move_cycles(DOWNLOAD, value, DRAM, self.here)
        if node is not None:
            move(value, location=self.here)
            download = self.cycles(node)
        upload = self._move_cycles(UPLOAD, value, self.here, DRAM)
        copy = self._move_cycles("Identity", value, self.here, self.there) if self.here != self.there else 0.0
        return Buffer(size, stored, kept and not stored, download, upload, copy)

    def _move_cycles(self, kind: str, value: ir.Value, source: str, target: str) -> float:
        placement = move(value, location=source, parent=None)
        node = new_copy(value, "") if kind == "Identity" else move_node(kind, value, "")
        place(node.outputs[0], _at(placement, target))
        try:
            return self.cycles(node)
        finally:
            node.replace_input_with(0, None)

    def _costed(self, op: Op, node: ir.Node) -> Op:
        if _is_concat(node):
            return op  # its slices are where they belong once they are stored
        streamed = self.reading.streamed(node, op)
        for i, value in enumerate(node.inputs):
            if value is not None and placement_of(value).location != IMMEDIATE:
                move(value, location=DRAM if i in streamed else self.here)
        for out in node.outputs:
            if find_placement(out) is not None:
                move(out, location=self.here if op.moves else self.there)
        return Op(op.reads, op.streams, op.writes, op.stores, self.cycles(node), op.moves, op.repeatable)


def _is_concat(node: ir.Node) -> bool:
    return node.op_type == OUTPUT_CONCAT and is_move(node)


def is_pure(node: ir.Node, model: ir.Model) -> bool:
    """Does the node give the same whenever it runs?"""
    if is_move(node):
        return True
    return effect(node, lambda _, domain: model.opset_imports.get(domain), model.functions, {}) == Effect.PURE


def new_copy(value: ir.Value, name: str) -> ir.Node:
    """An Identity that moves a value to another local memory; not in a graph yet."""
    node = ir.Node("", "Identity", [value], num_outputs=1, name=name)
    out = node.outputs[0]
    out.name, out.type, out.shape = name, value.type, value.shape
    return node


def _at(placement: Placement, location: str) -> Placement:
    return Placement(placement.layout, placement.dtype, location, None, placement.pad, None, placement.gene)


@contextmanager
def _restoring(model: ir.Model) -> Iterator[None]:
    saved = {value: find_placement(value) for value in values(model)}
    try:
        yield
    finally:
        for value, placement in saved.items():
            if placement is not None:
                place(value, placement)
