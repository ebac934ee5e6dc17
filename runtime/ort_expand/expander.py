"""Walks a model and replaces what ONNX Runtime lacks: a rule of our own, an older opset, a schema's function, casts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import onnx

from . import float4, opsets
from .functions import all_nodes, graphs_of, has_body, inline, rename, schema_body
from .kernels import has_kernel
from .node import Builder, Node, Rule
from .rules import OLD_FORMS, RULES, UNSAFE, UNSAFE_MARKS, WITHOUT_AN_ERROR
from .scope import Scope
from .widen import widen

# Each step replaces a node by simpler ones; real chains are three long.
_DEEPEST = 12
_BODIES = ("If", "Loop", "Scan")
# A model without an operator of ai.onnx does not say; this one has every form that the rules write.
_OPSET_WITHOUT_IMPORT = 21
# Below it, an older form of an operator is a different operator more often than not.
_LOWERABLE_FROM = 21
# Runs in ONNX Runtime without a kernel: folded into the graph, or made of a function that always has kernels.
_BUILT_IN = ("Constant",)


def expand(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with every node that ONNX Runtime lacks replaced, as far as there is a way; None when nothing changes.

    `model` is used up. What cannot be replaced is left as it is: creating the session names it.
    """
    model = _with_default_import(model)
    if opsets.is_too_old(model):
        with_forms = _Expander(model, OLD_FORMS, rules_only=True).run() or model
        raised = opsets.raise_old(with_forms)
        return _Expander(raised, RULES).run() or raised
    return _Expander(model, RULES).run()


def without_unsafe(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with only those nodes replaced whose kernels write into their inputs or may end the process.

    `model` is used up.
    """
    return _Expander(model, UNSAFE, rules_only=True).run() or model


def needs_expansion(model: onnx.ModelProto) -> bool:
    """A quick look at the operators alone: has one of them no kernel at all, or one that is known to be wrong?"""
    imports = _imports(model.opset_import)
    nodes = [*all_nodes(model.graph.node), *(n for f in model.functions for n in all_nodes(f.node))]
    seen = {(n.domain, n.op_type) for n in nodes}
    local = {(f.domain, f.name) for f in model.functions}
    if any(_is_unsafe(n) for n in nodes):
        return True
    return any(_is_lacking(domain, op_type, imports.get(domain, 1)) for domain, op_type in seen - local)


def _is_unsafe(node: onnx.NodeProto) -> bool:
    is_marked = any(a.name in UNSAFE_MARKS and (a.i or any(a.ints)) for a in node.attribute)
    return is_marked and (node.domain, node.op_type) in UNSAFE


def _is_lacking(domain: str, op_type: str, opset: int) -> bool:
    if (domain, op_type) in WITHOUT_AN_ERROR:
        return True
    found = opsets.schema.find(domain, op_type, opset)
    if found is None or op_type in _BUILT_IN or has_body(found):  # ONNX Runtime inlines functions, too
        return False
    return not has_kernel(domain, op_type, found.since_version)


def _with_default_import(model: onnx.ModelProto) -> onnx.ModelProto:
    if all(o.domain for o in model.opset_import):
        model.opset_import.add(domain="", version=_OPSET_WITHOUT_IMPORT)
    return model


def _imports(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in entries}


class _Expander:
    def __init__(
        self, model: onnx.ModelProto, rules: Mapping[tuple[str, str], tuple[Rule, ...]], rules_only: bool = False
    ) -> None:
        self._model = model
        self._rules, self._rules_only = rules, rules_only
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._counter = itertools.count()
        self._changed = False
        self._target = opsets.default_import(model).version
        self._codes_suffice = True  # for float4, so far

    def run(self) -> onnx.ModelProto | None:
        model = self._model
        scope = Scope(_imports(model.opset_import), model.ir_version)
        scope.note_types({v.name: v.type for v in model.graph.value_info})
        self._graph(model.graph, scope)
        if self._target < scope.imports[""]:
            self._changed |= opsets.lower(model, self._target)
        if self._changed and self._codes_suffice:
            float4.to_codes(model)
        return model if self._changed else None

    def _graph(self, graph: onnx.GraphProto, scope: Scope) -> None:
        scope.declare(graph)
        nodes = self._nodes(graph.node, scope, ())
        if nodes is not None:
            del graph.node[:]
            graph.node.extend(nodes)

    def _nodes(self, nodes: Iterable[onnx.NodeProto], scope: Scope, path: tuple) -> list[onnx.NodeProto] | None:
        """The nodes that stand for `nodes`, or None where all of them stay. Notes the types of all their values."""
        result: list[onnx.NodeProto] = []
        changed = False
        for node in nodes:
            self._bodies(node, scope)
            scope.note_node(node)
            replaced = self._replace(node, scope, path) if len(path) < _DEEPEST else None
            if replaced is None:
                result.append(node)
                self._note_float4(Node(node, scope))
                continue
            changed = True
            result += replaced
        self._changed |= changed
        return result if changed else None

    def _note_float4(self, node: Node) -> None:
        if float4.touches(node) and not float4.moves_codes(node):
            self._codes_suffice = False

    def _bodies(self, node: onnx.NodeProto, scope: Scope) -> None:
        if node.domain or node.op_type not in _BODIES:
            return
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                inner = scope.child()
                self._carry(node, graph, scope, inner)
                self._graph(graph, inner)
                self._hand_out(node, graph, scope, inner)

    def _carry(self, node: onnx.NodeProto, graph: onnx.GraphProto, scope: Scope, inner: Scope) -> None:
        """Types of a Loop's carried values, which a body need not declare."""
        if node.op_type == "Loop":
            for value, name in zip(graph.input[2:], node.input[2:]):
                kind = _without_shape(scope.type_of(name))
                if kind is not None:
                    inner.note_types({value.name: kind})

    def _hand_out(self, node: onnx.NodeProto, graph: onnx.GraphProto, scope: Scope, inner: Scope) -> None:
        """Element types of what a body computes, which shape inference without the captures does not find."""
        first = 1 if node.op_type == "Loop" else 0
        for value, name in zip(graph.output[first:], node.output):
            kind = _without_shape(inner.type_of(value.name))
            if kind is not None and scope.type_of(name) is None:
                scope.note_types({name: kind})

    def _replace(self, proto: onnx.NodeProto, scope: Scope, path: tuple) -> list[onnx.NodeProto] | None:
        node = Node(proto, scope)
        builder = Builder(proto, scope.imports.get("", 0), self._counter)
        step = (proto.domain, proto.op_type)
        function = self._functions.get((proto.domain, proto.op_type, proto.overload))
        if function is not None:
            return self._call(node, function, builder, path)
        for rule in self._rules.get(step, ()):
            written = rule(node, builder) if (step, rule) not in path else None
            if written is not None:
                results = [written] if isinstance(written, str) else list(written)
                return self._finish(proto, results, builder, scope, (*path, (step, rule)))
        if self._rules_only or node.schema is None or proto.op_type in _BUILT_IN:
            return None
        if has_kernel(node.domain, node.op_type, node.since_version, node.types):
            return None
        if not node.domain:
            older = opsets.lowest_kernel(node.op_type, node.since_version, node.types)
            if older is not None and node.since_version > _LOWERABLE_FROM:
                self._target = min(self._target, node.since_version - 1)
                return None
        outputs = widen(node, builder)
        if outputs is None:
            body = schema_body(node)
            outputs = inline(node, body, builder) if body is not None else None
        if outputs is None:
            return None
        return self._finish(proto, outputs, builder, scope, (*path, (step, None)))

    def _call(self, node: Node, function: onnx.FunctionProto, builder: Builder, path: tuple) -> list | None:
        """A model-local function is inlined where something in it has to be replaced."""
        step = ((function.domain, function.name, function.overload), None)
        if step in path:
            return None
        outputs = inline(node, function, builder)
        trial = node.scope.child()
        nodes = self._nodes(builder.nodes, trial, (*path, step))
        if nodes is None:
            node.scope.note_types({n: k for n, o in zip(node.proto.output, outputs) if (k := trial.type_of(o)) and n})
            return None
        builder.nodes = nodes
        return self._finish(node.proto, outputs, builder, node.scope, (*path, step))

    def _finish(
        self, proto: onnx.NodeProto, outputs: list[str], builder: Builder, scope: Scope, path: tuple
    ) -> list[onnx.NodeProto]:
        """Gives the results the names of the replaced node's outputs, and expands what was written in turn."""
        computed = {name for node in builder.nodes for name in node.output}
        names: dict[str, str] = {}
        for old, new in zip(outputs, proto.output):
            if not new or not old:
                continue
            if old in computed and old not in names:
                names[old] = new
            else:  # an input handed on, or a result given twice
                builder.nodes.append(onnx.helper.make_node("Identity", [old], [new]))
        for node in builder.nodes:
            rename(node, names)
        return self._nodes(builder.nodes, scope, path) or builder.nodes


def _without_shape(kind: onnx.TypeProto | None) -> onnx.TypeProto | None:
    if kind is None or not kind.HasField("tensor_type"):
        return kind
    return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, None)


def expandable() -> Mapping[tuple[str, str], set[int]]:
    """(domain, operator) → the schema versions that run without a kernel of their own."""
    found: dict[tuple[str, str], set[int]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        if each.deprecated or has_kernel(each.domain, each.name, each.since_version):
            continue
        by_opset = not each.domain and opsets.lowest_kernel(each.name, each.since_version, {}) is not None
        key = (each.domain, each.name)
        if key in RULES or by_opset or has_body(each):
            found.setdefault(key, set()).add(each.since_version)
    return found
