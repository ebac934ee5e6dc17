"""The smallest part of a graph that one pass still breaks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from pfvm.compiler.difference.compare import differences
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import Options
from pfvm.errors import PfvmError, describe_node
from pfvm.passes.effects import roots
from pfvm.runtime.compare import Tolerance

from .cut import Cut, Model
from .faults import Fault, Judge
from .search import Found, Search, only

_SECONDS = 60.0  # for making the part smaller


@dataclass(frozen=True)
class Reproducer:
    """A model of a few nodes, inputs, and the fault that the pass alone makes of it."""

    proto: onnx.ModelProto
    feeds: Mapping[str, Any]
    fault: Fault
    options: Options


def reproduce(found: Found, options: Options, judge: Judge) -> Reproducer | None:
    """The smallest part found in a minute of the model before the rewrite that the pass alone breaks the same way.

    None where it takes more than the pass alone: what other passes knew or left.
    """
    feeds = found.fault.feeds if found.fault.feeds is not None else judge.cases[0].feeds
    alone = only(options, found.pass_name)
    model = Model(found.before, feeds)
    shrinker = _Shrinker(model, alone, found.fault, judge.tolerance, time.monotonic() + _SECONDS)
    for graph, nodes in _regions(found, model):
        smallest = shrinker.search(graph, nodes)
        if smallest is not None:
            return smallest
    return None


def _regions(found: Found, model: Model) -> Iterator[tuple[ir.Graph, list[ir.Node]]]:
    """Where the rewrite was: in the innermost graph that has all of it, then the graphs around that."""
    changed = _changed(found)
    if not changed:
        changed = list(found.before.graph)
    graph = _common_graph(changed, model)
    while True:
        nodes = list(dict.fromkeys(node for n in changed if (node := _ancestor(n, graph, model)) is not None))
        yield graph, nodes
        if graph is found.before.graph:
            return
        around = model.owner.get(graph)
        if around is not None:
            assert around.graph is not None
            graph, changed = around.graph, [around]
            continue
        called = {f.identifier() for f in found.before.functions.values() if f.graph is graph}
        changed = [n for n in found.before.graph.all_nodes() if n.op_identifier() in called]
        graph = found.before.graph
        if not changed:  # it is called by another function
            changed = [n for n in graph if n.op_identifier() in found.before.functions]


def _changed(found: Found) -> list[ir.Node]:
    """Nodes of the model before that the rewrite removed or changed; of a crash, the one where it was tried."""
    wanted: set[tuple[str, ...]] = set()
    if found.after is not None:
        for change in differences(found.before, found.after).nodes:
            if change.kind != "added":
                wanted.add((change.op, change.name, *change.outputs))
    nodes = [node for root in roots(found.before) for node in root.all_nodes()]
    root = "" if found.match is None else found.match.node
    return [
        node
        for node in nodes
        if (_full_name(node), node.name or "", *(out.name or "" for out in node.outputs)) in wanted
        or (found.after is None and describe_node(node) == root)
    ]


def _full_name(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _graphs_around(node: ir.Node, model: Model) -> list[ir.Graph]:
    """From the innermost to the outermost."""
    found = []
    graph = node.graph
    while graph is not None:
        found.append(graph)
        owner = model.owner.get(graph)
        graph = None if owner is None else owner.graph
    return found


def _common_graph(nodes: Sequence[ir.Node], model: Model) -> ir.Graph:
    chains = [_graphs_around(node, model) for node in nodes]
    return next((graph for graph in chains[0] if all(graph in chain for chain in chains)), model.model.graph)


def _ancestor(node: ir.Node, graph: ir.Graph, model: Model) -> ir.Node | None:
    """The node of this graph that is, or contains, the given one."""
    current: ir.Node | None = node
    while current is not None and current.graph is not graph:
        current = None if current.graph is None else model.owner.get(current.graph)
    return current


class _Shrinker:
    def __init__(self, model: Model, options: Options, fault: Fault, tolerance: Tolerance, deadline: float) -> None:
        self._model, self._options, self._fault = model, options, fault
        self._tolerance, self._deadline = tolerance, deadline

    def search(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> Reproducer | None:
        """Grow the part until the pass breaks it, then leave out what is not needed."""
        region = set(nodes)
        while True:
            tried = self._try(graph, region)
            if tried is not None:
                return self._shrink(graph, region, tried)
            grown = region | _neighbours(region, graph)
            if grown == region:
                if region == set(graph):
                    return None
                grown = set(graph)
            region = grown
            if time.monotonic() > self._deadline and region != set(graph):
                region = set(graph)

    def _shrink(self, graph: ir.Graph, region: set[ir.Node], best: Reproducer) -> Reproducer:
        """Delta debugging: leave out halves, quarters … single nodes, as long as the fault stays."""
        ordered = [node for node in graph if node in region]
        size = max(1, len(ordered) // 2)
        while size:
            removed = False
            for start in range(0, len(ordered), size):
                if time.monotonic() > self._deadline:
                    return best
                left = ordered[:start] + ordered[start + size :]
                tried = self._try(graph, set(left)) if left else None
                if tried is not None:
                    ordered, best, removed = left, tried, True
                    break
            if not removed:
                size //= 2
            else:
                size = min(size, max(1, len(ordered) // 2)) if ordered else 0
        return best

    def _try(self, graph: ir.Graph, nodes: set[ir.Node]) -> Reproducer | None:
        """The part as a reproducer, if the pass alone breaks it in the same way."""
        try:
            cut = self._model.cut(graph, list(nodes))
            for feeds in cut.feeds:
                fault = self._breaks(cut, feeds)
                if self._fault.is_like(fault):
                    assert fault is not None
                    return Reproducer(cut.proto, feeds, fault, self._options)
        except PfvmError:
            return None  # such a part does not stand, or run, alone
        return None

    def _breaks(self, cut: Cut, feeds: Mapping[str, Any]) -> Fault | None:
        model = read_model(cut.proto)
        judge = Judge(model, feeds, tolerance=self._tolerance)
        return Search(model, self._options, judge).first_fault()


def _neighbours(region: set[ir.Node], graph: ir.Graph) -> set[ir.Node]:
    found: set[ir.Node] = set()
    for node in region:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer.graph is graph:
                found.add(producer)
        found.update(use.node for out in node.outputs for use in out.uses() if use.node.graph is graph)
    return found
