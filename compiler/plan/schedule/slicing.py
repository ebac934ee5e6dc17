"""Time slices: a node whose operands and results do not fit a local memory becomes one node per slice.

What is sliced stays in DRAM as a whole, with a subaxis of level Time. MNCoreInputSplit brings a slice, and
MNCoreOutputConcat puts the slices of a result together again; where the next node is sliced alike, slices pass from
node to node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import (
    CAST,
    DOMAIN,
    INPUT_SPLIT,
    LAYOUT_SWITCH,
    OUTPUT_CONCAT,
    REFILL,
    REUSES,
    copy_node,
    is_move,
    move_node,
)
from pfvm.compiler.plan.ops.table import dims, rank, rule_of
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE, Placement, find_placement, place, placement_of

from .cuts import Cut, cuts, slice_layout, timed_layout
from .parallel_axes import Uncuttable, operand_axes, viewed_axis
from .reading import StreamedInputs, is_pure

TIMED = "pfvm.timed"
"""In `value.meta`: the layout that the whole has in DRAM, because slices of it are read or written there."""

MOST_SLICES = 400


def slice_in_time(model: ir.Model, machine: Machine, limit: int, streams: StreamedInputs) -> int:
    """Slices every node that does not fit `limit` long words of a local memory and can be sliced; how many there were.

    A node that cannot be stays as it is: the schedule names it.
    """
    return _Slicer(model, machine, limit, streams).run()


class _Slicer:
    def __init__(self, model: ir.Model, machine: Machine, limit: int, streams: StreamedInputs) -> None:
        self.model, self.graph, self.limit, self.streams = model, model.graph, limit, streams
        self.granularity = max(memory.granularity for memory in machine.local_memories)
        self.one_memory = len(machine.local_memories) == 1
        self.cuts: dict[ir.Value, Cut] = {}  # of values that are in DRAM in slices
        self.slices: dict[ir.Value, list[ir.Value]] = {}

    def run(self) -> int:
        count = 0
        for node in list(self.graph):
            if self._may_be_cut(node) and not self._fits(node, None):
                cut = self._choose(node)
                if cut is not None:
                    self._cut(node, cut)
                    count += 1
        for node in reversed(list(self.graph)):
            if node.op_type in (OUTPUT_CONCAT, INPUT_SPLIT) and is_move(node) and not _is_used(node.outputs[0]):
                self.graph.remove(node, safe=True)
        return count

    def _may_be_cut(self, node: ir.Node) -> bool:
        placed = [find_placement(out) for out in node.outputs]
        if any(placement is None or placement.location == IMMEDIATE for placement in placed):
            return False
        plain = not is_move(node) or node.op_type in (CAST, REFILL, LAYOUT_SWITCH)
        return plain and REUSES not in node.metadata_props and is_pure(node, self.model)

    # ---- what fits

    def _fits(self, node: ir.Node, cut: Cut | None) -> bool:
        operands = self._operand_cuts(node, cut) if cut else [None] * len(node.inputs)
        read = {v: self._size(v, c) for v, c in zip(node.inputs, operands) if v is not None and self._is_local(node, v)}
        may_stream = {node.inputs[i] for i in self.streams(node)}
        for value, operand in zip(node.inputs, operands):
            if value is not None and value in may_stream and operand is None:
                read.pop(value, None)  # what is computed can be read from DRAM, too
        results = output_cuts(node, cut) if cut else [None] * len(node.outputs)
        written = sum(self._size(out, own) for out, own in zip(node.outputs, results))
        return self._fit(sum(read.values()), written)

    def _fit(self, read: int, written: int) -> bool:
        return read + written <= self.limit if self.one_memory else max(read, written) <= self.limit

    def _size(self, value: ir.Value, cut: Cut | None) -> int:
        layout = placement_of(value).layout
        cut_layout = slice_layout(layout, cut, 0) if cut else layout
        return (cut_layout or layout).num_lw(self.granularity)

    def _is_local(self, node: ir.Node, value: ir.Value) -> bool:
        return placement_of(value).location != IMMEDIATE

    # ---- which cut

    def _choose(self, node: ir.Node) -> Cut | None:
        """The cut with fewest slices that fits and that all operands allow; those that operands have already first."""
        candidates = sorted(
            (cut for cut in self._candidates(node) if cut.count <= MOST_SLICES and self._fits(node, cut)),
            key=lambda cut: (not self._is_shared(node, cut), cut.count),
        )
        return next(iter(candidates), None)

    def _candidates(self, node: ir.Node) -> Iterator[Cut]:
        layout = placement_of(node.outputs[0]).layout
        for axis in range(len(layout.shape)):
            for cut in cuts(layout, axis):
                try:
                    operands = self._operand_cuts(node, cut)
                    output_cuts(node, cut)
                except Uncuttable:
                    continue
                if all(self._allows(value, operand, node) for value, operand in zip(node.inputs, operands)) and all(
                    self._has_all_slices(out, own)
                    for out, own in zip(node.outputs, output_cuts(node, cut))
                    if own is not None
                ):
                    yield cut

    def _operand_cuts(self, node: ir.Node, cut: Cut) -> list[Cut | None]:
        axes = operand_axes(node, cut.axis)
        return [None if axis is None else cut.on(axis) for axis in axes]

    def _allows(self, value: ir.Value | None, cut: Cut | None, node: ir.Node) -> bool:
        if value is None or cut is None:
            return True
        if placement_of(value).location == IMMEDIATE or not self._has_all_slices(value, cut):
            return False
        known = self.cuts.get(value)
        if known is not None:
            return known == cut
        view = view_of(value)
        if view is None:
            return self._can_be_timed(value, node)
        axis = viewed_axis(view, cut.axis)
        return axis is not None and self._allows(view.inputs[0], cut.on(axis), view)

    def _can_be_timed(self, value: ir.Value, user: ir.Node) -> bool:
        """May the whole lie in DRAM in slices? Not if a node reads it from there, or an output names it again."""
        maker = value.producer()
        if maker is not None and is_move(maker) and maker.op_type == INPUT_SPLIT:
            return False
        in_dram = placement_of(value).location == DRAM
        names = [value]
        for name in names:
            if name is not value and name.is_graph_output():
                return False
            for reader, index in name.uses():
                if REUSES in reader.metadata_props and not is_move(reader):
                    names += reader.outputs
                elif in_dram and reader is not user and index in self.streams(reader):
                    return False
        return True

    def _has_all_slices(self, value: ir.Value, cut: Cut) -> bool:
        layout = placement_of(value).layout
        return all(slice_layout(layout, cut, number) is not None for number in range(cut.count))

    def _is_shared(self, node: ir.Node, cut: Cut) -> bool:
        pairs = zip(node.inputs, self._operand_cuts(node, cut))
        return any(
            value is not None and operand is not None and self.cuts.get(value) == operand for value, operand in pairs
        )

    # ---- cutting

    def _cut(self, node: ir.Node, cut: Cut) -> None:
        operands, results = self._operand_cuts(node, cut), output_cuts(node, cut)
        made: list[list[ir.Value]] = [[] for _ in node.outputs]
        for number in range(cut.count):
            inputs = [
                value if value is None or operand is None else self._slice(node, value, operand, number)
                for value, operand in zip(node.inputs, operands)
            ]
            outputs = [_part(out, own, number, f"{out.name}_Time_{number}") for out, own in zip(node.outputs, results)]
            if node.op_type == "Reshape":
                inputs[1] = self._shape_constant(node.inputs[1], outputs[0])
            self.graph.insert_before(node, copy_node(node, inputs, outputs, f"Time_{number}"))
            for parts, part in zip(made, outputs):
                parts.append(part)
        for out, own, parts in zip(node.outputs, results, made):
            if own is None:
                _stand_in(parts[0], out)
            else:
                self._put_together(node, out, parts, own)
        self.graph.remove(node, safe=True)

    def _slice(self, node: ir.Node, value: ir.Value, cut: Cut, number: int) -> ir.Value:
        view = view_of(value)
        if value not in self.slices and view is not None:
            self.slices[value] = self._view_slices(node, view, cut)
        if value not in self.slices:
            self._mark(value, cut)
            parts = []
            for i in range(cut.count):
                split = move_node(INPUT_SPLIT, value, f"{value.name}_InputSplit_{i}", _attributes(value, cut, [i]))
                _become_part(split.outputs[0], value, cut, i)
                self.graph.insert_before(node, split)
                parts.append(split.outputs[0])
            self.slices[value] = parts
        return self.slices[value][number]

    def _view_slices(self, node: ir.Node, view: ir.Node, cut: Cut) -> list[ir.Value]:
        """Slices of a view: views of slices."""
        source, out = view.inputs[0], view.outputs[0]
        axis = viewed_axis(view, cut.axis)
        assert source is not None and axis is not None, "a cut is only chosen where views allow it"
        parts = []
        for number in range(cut.count):
            part = _part(out, cut, number, f"{out.name}_Time_{number}")
            inputs = [self._slice(node, source, cut.on(axis), number), *view.inputs[1:]]
            if view.op_type == "Reshape":
                inputs[1] = self._shape_constant(view.inputs[1], part)
            self.graph.insert_before(node, copy_node(view, inputs, [part], f"Time_{number}"))
            parts.append(part)
        return parts

    def _shape_constant(self, like: ir.Value | None, part: ir.Value) -> ir.Value:
        assert like is not None and part.shape is not None
        shape = np.array(part.shape.numpy(), np.int64)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(shape))], num_outputs=1)
        out = node.outputs[0]
        out.name, out.type, out.shape = f"{part.name}_shape", like.type, like.shape
        out.meta.update(like.meta)
        self.graph.insert_before(self.graph[0], node)
        return out

    def _put_together(self, node: ir.Node, out: ir.Value, parts: list[ir.Value], cut: Cut) -> None:
        whole = ir.Node(
            DOMAIN,
            OUTPUT_CONCAT,
            parts,
            _attributes(out, cut, None),
            overload=str(cut.count),
            num_outputs=1,
            name=f"{out.name}_OutputConcat",
            metadata_props={REUSES: "1"},
        )
        new = whole.outputs[0]
        new.type, new.shape = out.type, out.shape
        new.meta.update(out.meta)
        self.graph.insert_before(node, whole)
        _stand_in(new, out)
        self._mark(new, cut)
        self.slices[new] = parts

    def _mark(self, value: ir.Value, cut: Cut) -> None:
        self.cuts[value] = cut
        value.meta[TIMED] = timed_layout(placement_of(value).layout, cut)


def view_of(value: ir.Value) -> ir.Node | None:
    """The reuse node that names another value's memory by this one; None for a value of its own."""
    maker = value.producer()
    return maker if maker is not None and REUSES in maker.metadata_props and not is_move(maker) else None


def output_cuts(node: ir.Node, cut: Cut) -> list[Cut | None]:
    """The cut of each output where one of the first is given; None for one that every slice computes whole.

    Raises Uncuttable where an output has not the axis of the first.
    """
    first = node.outputs[0]
    found: list[Cut | None] = []
    for out in node.outputs:
        axis = cut.axis - (rank(first) - rank(out))
        if axis >= 0 and dims(out)[axis] == dims(first)[cut.axis]:
            found.append(cut.on(axis))
        elif rule_of(node).kind == "elementwise":  # it comes from operands that do not have the axis
            found.append(None)
        else:
            raise Uncuttable
    return found


# ---- values and nodes


def _stand_in(new: ir.Value, old: ir.Value) -> None:
    """Gives a value another's name and all its uses."""
    new.name, old.name = old.name, f"{old.name}_whole"
    new.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def _part(out: ir.Value, cut: Cut | None, number: int, name: str) -> ir.Value:
    part = ir.Value(name=name, type=out.type)
    part.meta.update(out.meta)
    if cut is None:  # every slice computes it whole
        part.shape = out.shape
    else:
        _become_part(part, out, cut, number)
    return part


def _become_part(part: ir.Value, whole: ir.Value, cut: Cut, number: int) -> None:
    placement = placement_of(whole)
    layout: Layout | None = slice_layout(placement.layout, cut, number)
    assert layout is not None, "a cut is only chosen where all slices are"
    part.shape = ir.Shape(layout.shape)
    pad = placement.pad if layout.is_padded else None
    place(part, Placement(layout, placement.dtype, None, None, pad, None, placement.gene))


def _attributes(value: ir.Value, cut: Cut, numbers: list[int] | None) -> list[ir.Attr]:
    """Of a split: the positions of its slice. Of a concatenation (None): where each position is among the slices."""
    size = placement_of(value).layout.shape[cut.axis]
    order = [p for i in (numbers if numbers is not None else range(cut.count)) for p in cut.positions(size, i)]
    if numbers is None:
        order = sorted(range(size), key=order.__getitem__)
    return [ir.AttrInt64("axis", cut.axis), ir.AttrInt64s("indices", order)]


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
