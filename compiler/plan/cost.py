"""What each node of a laid-out MNGraph takes on a machine: cycles of every unit and path, long words moved, operations.

Units are "matrix" (multiply-adds), "matrix load" (filling the matrix with the weight), "vector" (elementwise) and
"local" (a long word copied inside a local memory in a cycle); the others are paths of the machine file. Nothing is
fitted to measurements: what a source does not state costs nothing.
"""

from __future__ import annotations

import functools
import math

import onnx_ir as ir

from . import convolving
from .forms import Forms
from .layout import ADDRESS, LANE, Layout, LayoutError, SubAxis
from .machine import SUM, Machine
from .mngraph import DOWNLOAD, GATHERED, INPUT_SPLIT, LAYOUT_SWITCH, OUTPUT_CONCAT, REFILL, REUSES, UPLOAD
from .ops import contract, convolve, reduce, reuse
from .ops.table import rule_of, size
from .placement import IMMEDIATE, Placement, find_placement, is_in_dram, placement_of
from .tree import Cost, Tree

MATRIX, MATRIX_LOAD, VECTOR, LOCAL = "matrix", "matrix load", "vector", "local"
NOTHING = Cost()


class CostModel:
    """The costs of one machine. Ask one model for everything: it remembers what it has computed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tree = Tree(machine)
        self._forms = Forms(machine)
        self.download, self.upload = self.tree.download, self.tree.upload
        self.copy = functools.cache(self._copy)
        self.switch = functools.cache(self._switch)

    # ---- moves

    def _copy(self, layout: Layout) -> Cost:
        """One local memory → the other: a long word per cycle and cell."""
        return self._unit(LOCAL, self.tree.words(layout))

    def _switch(self, source: Layout, target: Layout, dtype: str) -> Cost:
        """Another layout of the same elements: through the tree as high as elements have to go, else in each cell."""
        level = self.tree.crossing(source, target)
        if level is None:
            return NOTHING
        if level == LANE:
            return self._unit(LOCAL, max(self.tree.words(source), self.tree.words(target)))
        top = self.tree.top_of(level)
        return self.tree.up(source, dtype, top) + self.tree.down(target, dtype, top)

    def _unit(self, name: str, cycles: float) -> Cost:
        return Cost({name: self.tree.in_steps(cycles)})

    # ---- nodes

    def node(self, node: ir.Node) -> Cost:
        """One node of a graph whose values have placements. Raises InvalidModelError where one has none."""
        kind = rule_of(node).kind
        if kind == "constant" or REUSES in node.metadata_props:
            return NOTHING
        if kind == "move":
            return self._move(node)
        if (node.domain, node.op_type) == ("", "Identity"):
            return self.copy(placement_of(_first(node)).layout)
        total = self._streams(node)
        if GATHERED in node.metadata_props or kind == "gathered":
            return total + self._gathered(node) + (self._matrix(node) if kind == "contract" else NOTHING)
        if kind == "convolve":
            return total + self._convolve(node)
        if kind == "contract":
            return total + (self._convolve(node) if contract.is_over_rows(node) else self._contract(node))
        if kind == "reduce":
            return total + self._reduce(node)
        if kind == "reuse":
            return total + self._relaid(node)
        return total + self._vector(node)

    def _move(self, node: ir.Node) -> Cost:
        source, target = placement_of(_first(node)), placement_of(node.outputs[0])
        if node.op_type == OUTPUT_CONCAT:
            return NOTHING  # its slices are where they belong
        if node.op_type in (DOWNLOAD, INPUT_SPLIT):
            return self.download(target.layout, target.dtype)
        if node.op_type == UPLOAD:
            return self.upload(source.layout, source.dtype)
        if node.op_type == LAYOUT_SWITCH:
            return self.switch(source.layout, target.layout, source.dtype)
        if node.op_type == REFILL:
            return self._unit(LOCAL, self.tree.words(target.layout))
        wider = max((source, target), key=lambda placement: self.tree.words(placement.layout))
        return self._elementwise(wider, 1)

    def _streams(self, node: ir.Node) -> Cost:
        """Operands that the node reads from DRAM itself."""
        total = NOTHING
        for value in streamed(node):
            placement = placement_of(value)
            total += self.download(placement.layout, placement.dtype)
        return total

    def _elementwise(self, placement: Placement, operations: float) -> Cost:
        """operations: per element. Every cell of the vector unit's level works on the elements that it has."""
        unit = self.machine.vector_unit
        names = list(self.machine.index_levels)
        inside = names[names.index(unit.level) + 1 :] if unit.level in names else names
        lanes = self.machine.lanes(placement.dtype)
        held = self.tree.words(placement.layout) * lanes * math.prod(self.machine.index_levels[n] for n in inside)
        return self._unit(VECTOR, held / unit.rate[placement.dtype] * operations)

    def _vector(self, node: ir.Node) -> Cost:
        largest = max((placement_of(out) for out in node.outputs), key=lambda p: p.layout.stored_elements())
        count = max((size(out) for out in node.outputs), default=0)
        return self._elementwise(largest, rule_of(node).flops(node) / count if count else 0)

    def _relaid(self, node: ir.Node) -> Cost:
        """A reshape or transpose whose output lies elsewhere than its input."""
        source, target = placement_of(_first(node)), placement_of(node.outputs[0])
        try:
            perm = reuse.permutation(node)
            there = source.layout.transposed(perm) if perm is not None else source.layout.reshaped(target.layout.shape)
        except LayoutError:
            return self._gathered(node)
        return self.switch(there, target.layout, source.dtype)

    def _reduce(self, node: ir.Node) -> Cost:
        """Partial results in each cell, added up along the tree, and the result back to every cell that reads it."""
        source, target = placement_of(_first(node)), placement_of(node.outputs[0])
        count = size(node.inputs[0])
        total = self._elementwise(source, rule_of(node).flops(node) / count if count else 0)
        axes = reduce.reduced_axes(node)
        levels = {sub.level for axis in axes for sub in source.layout.axes[axis] if sub.size > 1}
        partial = _partial(source.layout, axes)
        down = _partial(target.layout, axes) if reduce.is_in_place(node) else target.layout
        return total + self._tree_sum(partial, down, source.dtype, target.dtype, levels)

    def _tree_sum(self, partial: Layout, result: Layout, dtype: str, result_dtype: str, levels: set[str]) -> Cost:
        """Sums over levels: up to the hop that crosses the outermost of them, and down again in the result's layout."""
        crossed = [self.tree.top_of(level) for level in levels if level in self.machine.index_levels]
        if not crossed:
            return NOTHING
        top = min(crossed)
        return self.tree.up(partial, dtype, top, frozenset(levels)) + self.tree.down(result, result_dtype, top)

    def _contract(self, node: ir.Node) -> Cost:
        data, out = placement_of(_first(node)), placement_of(node.outputs[0])
        axes = contract.product(node)
        levels = {sub.level for sub in data.layout.axes[axes.data_column] if sub.size > 1}
        above = self.machine.levels_outside_matrix
        reduced = {level for level in levels if level in above or level == self.machine.matrix_unit.level}
        return self._matrix(node) + self._tree_sum(self._partial_product(out, above), out.layout, SUM,
                                                   out.dtype, reduced)  # fmt: skip

    def _convolve(self, node: ir.Node) -> Cost:
        """Partial sums of every matrix unit, added up and dealt out as the result lies."""
        weight, out = placement_of(node.inputs[1]), placement_of(node.outputs[0])  # type: ignore[arg-type]
        unit = self.machine.matrix_unit
        mode = self.machine.matrix_mode(weight.dtype)
        busy = self._unit(MATRIX, convolving.matrix_cycles(node, self.machine, (mode.inputs, mode.outputs)))
        busy += self._unit(MATRIX_LOAD, self.tree.words(weight.layout) / unit.load)
        sums = convolving.partial_sums(node, self.machine, self.machine.lanes(SUM))
        if not sums.crossed:
            return busy
        top = min(self.tree.top_of(level) for level in sums.crossed)
        return busy + self.tree.up(sums.layout, SUM, top, sums.reduced) + self.tree.down(out.layout, out.dtype, top)

    def _partial_product(self, out: Placement, above: tuple[str, ...]) -> Layout:
        """The partial sums of each matrix unit: all columns, of the rows that its cell has."""
        lanes = self.machine.lanes(SUM)
        cells = [SubAxis(self.machine.index_levels[name], name) for name in self.machine.levels_inside_matrix]
        room = math.prod(sub.size for sub in out.layout.subaxes if sub.level not in above)
        words = -(-room // (lanes * math.prod(sub.size for sub in cells)))
        rows = [sub for sub in out.layout.subaxes if sub.level in above]
        axis = (*rows, SubAxis(words), SubAxis(lanes, LANE), *cells)
        return Layout((math.prod(sub.size for sub in axis),), (axis,))

    def _matrix(self, node: ir.Node) -> Cost:
        """Multiply-adds of the padded product on the matrix units that have a part of it, and loading the weight."""
        data, weight = placement_of(_first(node)), placement_of(node.inputs[1])  # type: ignore[arg-type]
        unit = self.machine.matrix_unit
        mode = self.machine.matrix_mode(weight.dtype)
        if GATHERED in node.metadata_props or not contract.is_local(node):
            out = placement_of(node.outputs[0])
            units = math.prod(self.tree.used(out.layout, level) for level in self.machine.levels_outside_matrix)
            units *= self.machine.index_levels[unit.level]
            room = out.layout.stored_elements() / max(size(node.outputs[0]), 1)
            products = rule_of(node).flops(node) / 2 * room
        else:
            levels = (*self.machine.levels_outside_matrix, unit.level)
            units = math.prod(self.tree.used(data.layout, level) for level in levels)
            column = weight.layout.padded_shape[contract.product(node).weight_column]
            products = data.layout.stored_elements() * column
        busy = self._unit(MATRIX, products / units / (mode.inputs * mode.outputs))
        return busy + self._unit(MATRIX_LOAD, self.tree.words(weight.layout) / unit.load)

    def _gathered(self, node: ir.Node) -> Cost:
        """Operands go up the tree, results come down it; what is computed on the way costs as elementwise."""
        total = NOTHING
        direct = streamed(node)
        for value in node.inputs:
            placement = None if value is None or value in direct else find_placement(value)
            if placement is not None and placement.location != IMMEDIATE:
                total += self.upload(placement.layout, placement.dtype)
        for out in node.outputs:
            placement = placement_of(out)
            total += self.download(placement.layout, placement.dtype)
        if rule_of(node).kind != "contract":
            return total + self._vector(node)
        return total + self._patches(node) if convolve.is_convolution(node) else total

    def _patches(self, node: ir.Node) -> Cost:
        """A gathered convolution multiplies patches: they come down to the matrix units as a product's data."""
        dtype = placement_of(_first(node)).dtype
        return self.download(self._forms.matrix(convolving.gathered_patches(node), dtype), dtype)


def streamed(node: ir.Node) -> list[ir.Value]:
    """The operands that a node reads from DRAM itself; all others come to a local memory first."""
    found = (node.inputs[i] for i in rule_of(node).reads_dram(node))
    return [value for value in found if value is not None and is_in_dram(value)]


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None, f"{node.op_type} has a first input"
    return value


def _partial(layout: Layout, axes: tuple[int, ...]) -> Layout:
    """A layout once each cell has reduced its own part of these axes: without their addresses and lanes."""
    kept = tuple(
        tuple(sub for sub in axis if sub.level not in (ADDRESS, LANE)) if i in axes else axis
        for i, axis in enumerate(layout.axes)
    )
    shape = tuple(min(size, math.prod(sub.size for sub in axis)) for size, axis in zip(layout.shape, kept))
    return Layout(shape, kept, layout.copies)
