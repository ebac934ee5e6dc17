"""Which way round each product goes and which images stay in their cells, by cost: the rules first, then one node after
the other changed and kept where the whole plan gets cheaper.

Each trial lays the whole graph out, so trials are counted: the nodes that compute most come first, and when TRIALS
nodes have been laid out the others stay as they are. The time stays linear in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from .cost import CostModel, streamed
from .forms import Forms
from .images import words
from .layouts import assign_layouts
from .machine import Machine
from .mngraph import values
from .ops import convolve
from .ops.table import rule_of
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
        nodes = sorted(model.graph, key=lambda node: rule_of(node).flops(node), reverse=True)
        self.products = [
            node
            for node in nodes
            if is_swappable(node) and (turn_weights or not comes_from_dram(node.inputs[1], updated))
        ]
        self.images = [node for node in nodes if _fits_cells(node, machine, limit)]
        self.turned: set[str] = set()
        self.in_cells: set[str] = set()

    def run(self) -> ir.Model:
        self.best = assign_layouts(self.model.clone(), self.machine)
        if not self.products and not self.images:
            return self.best
        self.lowest = cycles(self.best, self.costs)
        if self.images:
            self._try(self.turned, _names(self.images))
        for node in sorted([*self.products, *self.images], key=lambda node: rule_of(node).flops(node), reverse=True):
            if self.left < len(self.model.graph):
                break
            name = _names([node])
            if node in self.products:
                self._try(self.turned ^ name, self.in_cells)
            else:
                self._try(self.turned, self.in_cells ^ name)
        return self.best

    def _try(self, turned: set[str], in_cells: set[str]) -> None:
        self.left -= max(len(self.model.graph), 1)
        laid = assign_layouts(self.model.clone(), self.machine, turned, in_cells)
        found = cycles(laid, self.costs)
        if found < self.lowest:
            self.best, self.lowest, self.turned, self.in_cells = laid, found, turned, in_cells


def _names(nodes: Iterable[ir.Node]) -> set[str]:
    return {str(node.outputs[0].name) for node in nodes}


def _fits_cells(node: ir.Node, machine: Machine, limit: int | None) -> bool:
    """Can the images of a node be whole in each cell, data and result in two memories or in the one that there is?

    A batch may be sliced, one image cannot be.
    """
    if convolve.local_kind(node) is None:
        return False
    room = limit or min(memory.size for memory in machine.local_memories)
    forms = Forms(machine)
    sizes = [words(forms, value) for value in (node.inputs[0], *node.outputs)]
    return (sum(sizes) if len(machine.local_memories) == 1 else max(sizes)) <= room


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
