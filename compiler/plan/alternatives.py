"""Which way round each product goes and which images stay in their cells, by cost: the rules first, then one node after
the other changed and kept where the whole plan gets cheaper.

All images in their cells, and all convolutions over rows, are tried at once. Then each trial lays the whole graph out,
so trials are counted: the nodes that compute most come first, and when TRIALS nodes have been laid out the others stay
as they are. The time stays linear in the graph.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx_ir as ir

from .cost import CostModel, streamed
from .dtypes import HALF
from .forms import Forms
from .images import words
from .layouts import assign_layouts
from .machine import Machine
from .mngraph import values
from .ops import contract, convolve
from .ops.table import dims, rule_of
from .orient import comes_from_dram, is_swappable
from .placement import DRAM, placement_of
from .wishes import updated_state

TRIALS = 2000
"""Nodes that trials may lay out, all together."""


def choose_layouts(model: ir.Model, machine: Machine, turn_weights: bool = False, limit: int | None = None) -> ir.Model:
    """Lays out a model whose dtypes are assigned, with the cheapest of the forms of its nodes that were tried.

    turn_weights: also those products whose second operand is a weight in DRAM; else that is streamed past its data, as
    in MLSDK's published dump. limit: long words of each local memory that the plan may use. Returns the model laid
    out; the one given is left as it was.
    """
    return _Search(model, machine, turn_weights, limit).run()


class _Search:
    def __init__(self, model: ir.Model, machine: Machine, turn_weights: bool, limit: int | None) -> None:
        self.model, self.machine = model, machine
        self.costs = CostModel(machine)
        self.left = TRIALS
        updated = updated_state(model)
        self.nodes = nodes = sorted(model.graph, key=lambda node: rule_of(node).flops(node), reverse=True)
        self.products = [
            node
            for node in nodes
            if is_swappable(node) and (turn_weights or not comes_from_dram(node.inputs[1], updated))
        ]
        self.images = [node for node in nodes if _fits_cells(node, machine, limit)]
        self.sums = [node for node in nodes if _may_sum_over_rows(node, machine, limit, updated)]
        self.turned: set[str] = set()
        self.in_cells: set[str] = set()
        self.over_rows: set[str] = set()

    def run(self) -> ir.Model:
        self.best = assign_layouts(self.model.clone(), self.machine)
        if not (self.products or self.images or self.sums):
            return self.best
        self.lowest = cycles(self.best, self.costs)
        convolved = _names(node for node in self.sums if convolve.is_convolution(node))
        if self.images:
            self._try(self.turned, _names(self.images), set())
        if convolved:
            self._try(self.turned, _names(self.images) | convolved, convolved)
        changed = {*self.products, *self.images, *self.sums}
        for node in (node for node in self.nodes if node in changed):
            if self.left < len(self.model.graph):
                break
            name = _names([node])
            if node in self.products:
                self._try(self.turned ^ name, self.in_cells, self.over_rows)
            if node in self.images:
                self._try(self.turned, self.in_cells ^ name, self.over_rows - name)
            if node in self.sums:
                in_cells = self.in_cells | name if convolve.is_convolution(node) else self.in_cells
                self._try(self.turned, in_cells, self.over_rows ^ name)
        return self.best

    def _try(self, turned: set[str], in_cells: set[str], over_rows: set[str]) -> None:
        self.left -= max(len(self.model.graph), 1)
        laid = assign_layouts(self.model.clone(), self.machine, turned, in_cells, over_rows)
        found = cycles(laid, self.costs)
        if found < self.lowest:
            self.best, self.lowest = laid, found
            self.turned, self.in_cells, self.over_rows = turned, in_cells, over_rows


def _names(nodes: Iterable[ir.Node]) -> set[str]:
    return {str(node.outputs[0].name) for node in nodes}


def _fits_cells(node: ir.Node, machine: Machine, limit: int | None) -> bool:
    """Can the images of a node be whole in each cell, data and result in two memories or in the one that there is?

    A batch may be sliced, one image cannot be.
    """
    if convolve.local_kind(node) is None:
        return False
    forms = Forms(machine)
    if len(node.outputs) > 1:  # positions of maxima count over the whole batch, so that it is not sliced
        written = sum(words(forms, out, all_images=True) for out in node.outputs)
        return _fit([words(forms, node.inputs[0], all_images=True), written], machine, limit)
    return _fit([words(forms, value) for value in (node.inputs[0], *node.outputs)], machine, limit)


def _fit(sizes: list[int], machine: Machine, limit: int | None) -> bool:
    room = limit or min(memory.size for memory in machine.local_memories)
    return (sum(sizes) if len(machine.local_memories) == 1 else max(sizes)) <= room


def _may_sum_over_rows(node: ir.Node, machine: Machine, limit: int | None, updated: Container[ir.Value]) -> bool:
    """Products of two computed operands: those of a training step that contract the batch."""
    if len(node.inputs) < 2 or comes_from_dram(node.inputs[1], updated):
        return False
    if contract.may_be_over_rows(node):
        return True
    if node.op_type != "Conv" or convolve.local_kind(node) != "convolve":
        return False
    data, forms = node.inputs[0], Forms(machine)
    own = forms.matrix(dims(data), HALF, 0, convolve.spatial(data)).num_lw()
    return _fit([own, words(forms, node.outputs[0])], machine, limit)


def cycles(model: ir.Model, costs: CostModel) -> int:
    """Cycles of all nodes of a laid-out graph, and of downloading once what they do not stream from DRAM."""
    total = sum(costs.node(node).cycles for node in model.graph)
    direct = {value for node in model.graph for value in streamed(node)}
    read = {value for node in model.graph for value in node.inputs if value is not None}
    waiting = read - direct
    for value in values(model):
        if value in waiting and placement_of(value).location == DRAM:
            placement = placement_of(value)
            total += costs.download(placement.layout, placement.dtype).cycles
    return total
