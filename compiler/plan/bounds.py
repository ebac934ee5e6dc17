"""What no schedule of a laid-out graph can avoid, and totals of a scheduled one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .cost import CostModel, streamed
from .mngraph import DOWNLOAD, INPUT_SPLIT, RECOMPUTED, REUSES, UPLOAD, is_move
from .ops.table import rule_of
from .placement import DRAM, find_placement, placement_of
from .tree import Cost


@dataclass(frozen=True)
class LowerBound:
    """The busiest resource of what every schedule has to do. by_resource: each one's compulsory cycles."""

    cycles: int
    resource: str
    by_resource: dict[str, int]


def lower_bound(model: ir.Model, costs: CostModel) -> LowerBound:
    """The bound of a graph that is laid out, scheduled or not.

    Compulsory: every node once, every input and weight out of DRAM once, every output into it once. Spills, copies
    between local memories and what is computed again are a schedule's own choice.
    """
    by_resource = Cost.sum(_compulsory(model, costs)).by_resource()
    if not by_resource:
        return LowerBound(0, "", {})
    busiest = max(by_resource, key=lambda name: by_resource[name])
    return LowerBound(by_resource[busiest], busiest, dict(sorted(by_resource.items())))


def _compulsory(model: ir.Model, costs: CostModel) -> Iterator[Cost]:
    graph = model.graph
    given = {*graph.inputs, *graph.initializers.values()}
    outputs = {root_of(value) for value in graph.outputs}
    loaded: set[ir.Value] = set()
    for node in graph:
        direct = set(streamed(node))
        for value in node.inputs:
            if value is None or value in direct or REUSES in node.metadata_props:
                continue
            root = root_of(value)
            if root in given and root not in loaded and _location(root) == DRAM:
                loaded.add(root)
                placement = placement_of(value)
                yield costs.download(placement.layout, placement.dtype)
        if not _is_choice(node):
            yield costs.node(node)
    for value in outputs - given:
        maker = value.producer()
        if maker is None or rule_of(maker).kind == "constant":
            continue
        placement = placement_of(value)
        yield costs.upload(placement.layout, placement.dtype)


def root_of(value: ir.Value) -> ir.Value:
    """The value whose memory a value names again."""
    maker = value.producer()
    while maker is not None and REUSES in maker.metadata_props and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def _is_choice(node: ir.Node) -> bool:
    """Did the schedule add it?"""
    if is_move(node):
        return node.op_type in (DOWNLOAD, UPLOAD, INPUT_SPLIT)
    if (node.domain, node.op_type) == ("", "Identity"):
        return True
    return is_recomputed(node)


def is_recomputed(node: ir.Node) -> bool:
    """Does the node compute again what another one has?"""
    return RECOMPUTED in node.metadata_props


def _location(value: ir.Value) -> str | None:
    placement = find_placement(value)
    return None if placement is None else placement.location


@dataclass(frozen=True)
class Totals:
    """Sums over a scheduled graph. cycles: of the nodes one after the other; by_op: theirs by operator."""

    cycles: int
    cost: Cost
    by_op: dict[str, int]


def totals(model: ir.Model, costs: CostModel) -> Totals:
    """Sums of what the nodes take."""
    each = [costs.node(node) for node in model.graph]
    by_op: dict[str, int] = defaultdict(int)
    for node, cost in zip(model.graph, each):
        by_op[node.op_type] += cost.cycles
    cycles = sum(cost.cycles for cost in each)
    return Totals(cycles, Cost.sum(each), {op: n for op, n in sorted(by_op.items()) if n})
