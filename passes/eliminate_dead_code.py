"""eliminate-dead-code: drop what nobody reads."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .effects import bodies, nodes_in, roots
from .rewriter import SEALED_DOMAIN, Rewriter


@dataclasses.dataclass(frozen=True)
class EliminateDeadCode:
    """Drop nodes that nobody reads (nodes of undescribed domains stay), then initializers, functions and imports.

    before:  x ─ Relu ─ y (output)      after:  x ─ Relu ─ y (output)
             └── Exp ── unread
    """

    name: ClassVar[str] = "eliminate-dead-code"

    def run(self, rw: Rewriter) -> None:
        for graph in list(rw.scopes()):
            for node in reversed(graph):
                if node.graph is graph and rw.is_dead(node):
                    rw.erase(node)
                    rw.matched("dead node")
        for graph in list(rw.scopes()):
            for value in list(graph.initializers.values()):
                if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                    rw.drop_initializer(value)
                    rw.matched("dead initializer")
        _drop_functions(rw)


def _drop_functions(rw: Rewriter) -> None:
    """Keep what is called from the main graph, directly or through other functions."""
    functions = rw.model.functions
    reachable: set[ir.OperatorIdentifier] = set()
    pending: list[ir.Graph] = [rw.model.graph]
    while pending:
        for node in pending.pop():
            pending.extend(bodies(node))
            called = node.op_identifier()
            if called in functions and called not in reachable:
                reachable.add(called)
                pending.append(functions[called].graph)
    for identifier in [key for key in functions if key not in reachable]:
        del functions[identifier]
        rw.matched("dead function")
    _drop_imports(rw)


def _drop_imports(rw: Rewriter) -> None:
    """Forget domains of which there is no operator and no function; ai.onnx stays."""
    imported = [domain for domain in rw.model.graph.opset_imports if domain]
    if not imported:
        return
    used = {node.domain for root in roots(rw.model) for node in nodes_in(root)} | {key[0] for key in rw.model.functions}
    for domain in imported:
        if domain in used:
            continue
        del rw.model.graph.opset_imports[domain]
        if domain != SEALED_DOMAIN:  # ours, which a pass has just made needless
            rw.matched("dead opset import")
