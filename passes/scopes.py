"""Where a node stands, and what may be asked about it there: its graph's root, opset, operator, purity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from .effects import Effect, bodies, effect, function_effects, roots
from .view import View

SEALED_DOMAIN = "pfvm"
"""Bodies of our own fused functions live in this domain and no pass looks into them."""


def operator(node: ir.Node) -> str:
    """What a rule's root is called: "Relu", or "com.microsoft::Gelu" in another domain than ai.onnx."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


class Scopes:
    """The graphs of one model: main graph, functions, and the bodies in them."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._function_effects: dict[ir.OperatorIdentifier, Effect] | None = None
        self._root: dict[ir.Graph, ir.Graph] = {}
        self._owner: dict[ir.Graph, ir.Node] = {}
        self._scopes: list[ir.Graph] | None = None
        self._by_operator: dict[str, list[tuple[int, ir.Node]]] | None = None

    def scopes(self) -> Iterator[ir.Graph]:
        """Main graph, then functions, each followed by its nested bodies; our own sealed functions left out.

        As they stand now; kept until something is rewritten.
        """
        if self._scopes is None:
            functions = [f.graph for f in self.model.functions.values() if f.domain != SEALED_DOMAIN]
            self._scopes = [each for root in (self.model.graph, *functions) for each in self._register(root, root)]
        return iter(self._scopes)

    def _register(self, graph: ir.Graph, root: ir.Graph) -> list[ir.Graph]:
        """The graph and the bodies in it, outer ones first, once it is noted where each of them stands."""
        self._root[graph] = root
        found = [graph]
        for node in graph:
            for body in bodies(node):
                self._owner[body] = node
                found += self._register(body, root)
        return found

    def nodes_of(self, operators: Iterable[str]) -> list[ir.Node]:
        """The nodes of all scopes that have one of these operators, "Relu" or "com.microsoft::Gelu", in their order.

        What was found is kept until something is rewritten: a pass that has nothing to do costs next to nothing.
        """
        if self._by_operator is None:
            self._by_operator = {}
            nodes = (node for graph in self.scopes() for node in graph)
            for position, node in enumerate(nodes):
                self._by_operator.setdefault(operator(node), []).append((position, node))
        found = [each for name in operators for each in self._by_operator.get(name, ())]
        return [node for _, node in sorted(found, key=lambda each: each[0])]

    def root(self, graph: ir.Graph) -> ir.Graph:
        """The main graph or function body that a nested body belongs to."""
        if graph not in self._root:
            for root in roots(self.model):
                self._register(root, root)
        return self._root[graph]

    def opset(self, node: ir.Node, domain: str | None = None) -> int | None:
        """Opset of `domain` (default: the node's own) that the node's scope imports; None when it imports none."""
        assert node.graph is not None, f"{node.name} is in no graph"
        imports = self.root(node.graph).opset_imports
        return imports.get(node.domain if domain is None else domain)

    def in_function(self, node: ir.Node) -> bool:
        """Whether the node is inside a model-local function, where initializers do not exist."""
        assert node.graph is not None
        return self.root(node.graph) is not self.model.graph

    def is_standard(self, node: ir.Node) -> bool:
        """Whether the node is an ai.onnx operator: neither of another domain nor a local function of the same name."""
        return node.domain == "" and not (self.model.functions and node.op_identifier() in self.model.functions)

    def producer(self, value: ir.Value | None, op_type: str) -> ir.Node | None:
        """The node that computes `value`, if it is this ai.onnx operator."""
        node = value.producer() if value is not None else None
        return node if node is not None and node.op_type == op_type and self.is_standard(node) else None

    def view(self, node: ir.Node) -> View:
        """The node read through the schema of its scope's opset."""
        return View(node, self.opset(node) or 0)

    def effect(self, node: ir.Node) -> Effect:
        """Purity of the node, bodies and called functions included."""
        if self._function_effects is None:
            self._function_effects = function_effects(self.model, self.opset)
        return effect(node, self.opset, self.model.functions, self._function_effects)
