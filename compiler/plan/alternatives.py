"""Which way round each product goes, by cost: the rule of `orient`, then one product after the other turned and kept
where the whole plan gets cheaper.

Each trial lays the whole graph out, so trials are counted: the products that compute most come first, and when TRIALS
nodes have been laid out the others stay as the rule has them. The time stays linear in the graph.
"""

from __future__ import annotations

import onnx_ir as ir

from .cost import CostModel, streamed
from .layouts import assign_layouts
from .machine import Machine
from .mngraph import values
from .ops.table import rule_of
from .orient import comes_from_dram, is_swappable
from .placement import DRAM, placement_of
from .wishes import updated_state

TRIALS = 2000
"""Nodes that trials may lay out, all together."""


def choose_layouts(model: ir.Model, machine: Machine, turn_weights: bool = False) -> ir.Model:
    """Lays out a model whose dtypes are assigned, with the cheapest orientation of its products that was tried.

    turn_weights: also those whose second operand is a weight in DRAM; else that is streamed past its data, as in
    MLSDK's published dump. Returns the model laid out; the one given is left as it was.
    """
    costs = CostModel(machine)
    best = assign_layouts(model.clone(), machine)
    updated = updated_state(model)
    products = [
        node
        for node in model.graph
        if is_swappable(node) and (turn_weights or not comes_from_dram(node.inputs[1], updated))
    ]
    if not products:
        return best
    lowest = cycles(best, costs)
    products.sort(key=lambda node: rule_of(node).flops(node), reverse=True)
    turned: set[str] = set()
    for node in products[: TRIALS // max(len(model.graph), 1)]:
        trial = turned ^ {str(node.outputs[0].name)}
        laid = assign_layouts(model.clone(), machine, trial)
        found = cycles(laid, costs)
        if found < lowest:
            best, lowest, turned = laid, found, trial
    return best


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
