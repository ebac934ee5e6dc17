"""The differences of two models in normal form, each as one small record."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import onnx_ir as ir
from pfvm.passes.effects import bodies, roots
from pfvm.passes.provenance import FROM, RULE
from pfvm.passes.provenance import names as names_in

from .constants import ConstantChange, ConstantPairs
from .keys import Interner, Keys, attributes_of, inputs_of
from .matching import Matching


class Change(NamedTuple):
    """Something that has another value: `old` or `new` is None where it is not there."""

    what: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class NodeChange:
    """A node that was removed or added, or of which something changed. `where`: the body or function that has it.

    rule, sources: which rule of a pass made an added node, and of which nodes.
    """

    kind: Literal["removed", "added", "changed", "renamed"]
    where: str
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    rule: str = ""
    sources: tuple[str, ...] = ()


@dataclass
class Differences:
    """All that differs. `nodes_same` and `constants_same` count what is equal, renamed ones included."""

    model: list[Change] = field(default_factory=list)
    nodes: list[NodeChange] = field(default_factory=list)
    constants: list[ConstantChange] = field(default_factory=list)
    ops: dict[str, tuple[int, int]] = field(default_factory=dict)
    nodes_same: int = 0
    constants_same: int = 0
    renamed: list[NodeChange] = field(default_factory=list)
    constants_renamed: list[ConstantChange] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether the models differ in names at most."""
        return not (self.model or self.nodes or self.constants)

    @property
    def same_names(self) -> bool:
        return not (self.renamed or self.constants_renamed)


def differences(old: ir.Model, new: ir.Model) -> Differences:
    """Compare two models in normal form; neither is changed. Signatures are not looked at.

    Nodes are paired by structure, bodies and functions of the same name included. Takes time linear in both.
    """
    return _Comparison(old, new).run()


class _Comparison:
    def __init__(self, old: ir.Model, new: ir.Model) -> None:
        self._models = old, new
        self._constants = ConstantPairs(old, new)
        self._found = Differences(model=_model_changes(old, new), ops=_op_counts(old, new))
        intern = Interner()
        self._tokens: list[dict[ir.Value, object]] = []
        self._skip: list[dict[ir.Node, None]] = []
        for model in self._models:
            held = [n for r in roots(model) for n in r.all_nodes() if n.outputs]
            self._skip.append({n: None for n in held if self._constants.is_constant(n.outputs[0])})
            self._tokens.append(dict(self._constants.token))
        self._opsets: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
        self._name_inputs()
        self._keys = [Keys(intern, token, skip) for token, skip in zip(self._tokens, self._skip)]
        self._matching = Matching(self._keys[0], self._keys[1], self._constants)

    def _name_inputs(self) -> None:
        """Inputs of one name stand for each other, then those at the same place among the others."""
        old, new = ([v for v in m.graph.inputs if not self._constants.is_constant(v)] for m in self._models)
        common = {v.name for v in old} & {v.name for v in new}
        for values, tokens in zip((old, new), self._tokens):
            others = [v for v in values if v.name not in common]
            tokens.update({v: ("input", v.name) for v in values if v.name in common})
            tokens.update({v: ("place", i) for i, v in enumerate(others)})

    def run(self) -> Differences:
        old, new = self._models
        for keys, model in zip(self._keys, self._models):
            for root in roots(model):
                keys.graph(root, root.opset_imports)
        by_token = {token: v for v, token in self._tokens[1].items() if v.is_graph_input() and v.graph is new.graph}
        for value in old.graph.inputs:
            if self._tokens[0].get(value) in by_token:
                self._matching.value[value] = by_token[self._tokens[0][value]]
        self._opsets = old.opset_imports, new.opset_imports
        self._graphs(old.graph, new.graph, "")
        for identifier in [*old.functions, *(i for i in new.functions if i not in old.functions)]:
            self._function(old.functions.get(identifier), new.functions.get(identifier))
        for change in self._constants.changes():
            if change.kind in ("same", "renamed"):
                self._found.constants_same += 1
                self._found.constants_renamed += [change] if change.kind == "renamed" else []
            else:
                self._found.constants.append(change)
        return self._found

    # ---- graphs

    def _nodes(self, graph: ir.Graph, side: int) -> list[ir.Node]:
        return [node for node in graph if node not in self._skip[side]]

    def _graphs(self, old: ir.Graph, new: ir.Graph, where: str) -> None:
        """Inputs and outer values are paired already."""
        before, after = self._nodes(old, 0), self._nodes(new, 1)
        self._matching.graphs(before, after)
        for node in before:
            other = self._matching.node.get(node)
            if other is None:
                self._alone("removed", node, where)
            else:
                self._pair(node, other, where)
        for node in after:
            if not self._matching.is_taken(node):
                self._alone("added", node, where)
        for i, (mine, theirs) in enumerate(zip(old.outputs, new.outputs)):
            if not self._same_value(mine, theirs):
                what = f"output {i} of {where}" if where else f"output {mine.name!r}"
                self._found.model.append(Change(what, _origin(mine), _origin(theirs)))
        if where and len(old.outputs) != len(new.outputs):
            self._found.model.append(Change(f"outputs of {where}", str(len(old.outputs)), str(len(new.outputs))))

    def _function(self, old: ir.Function | None, new: ir.Function | None) -> None:
        known = old or new
        assert known is not None
        name = f"function {known.domain}::{known.name}{f':{known.overload}' if known.overload else ''}"
        if old is None or new is None:
            sizes = [None if f is None else f"{len(list(f.graph.all_nodes()))} nodes" for f in (old, new)]
            self._found.model.append(Change(name, *sizes))
            return
        interfaces = [_interface(f) for f in (old, new)]
        if interfaces[0] != interfaces[1]:
            self._found.model.append(Change(f"interface of {name}", *interfaces))
        self._found.model += _mapping_changes(f"opset of {name}: ", old.opset_imports, new.opset_imports)
        self._matching.value.update(zip(old.inputs, new.inputs))
        self._opsets = old.opset_imports, new.opset_imports
        self._graphs(old.graph, new.graph, name)

    # ---- nodes

    def _alone(self, kind: Literal["removed", "added"], node: ir.Node, where: str) -> None:
        rule = node.metadata_props.get(RULE, "") if kind == "added" else ""
        sources = tuple(names_in(node.metadata_props.get(FROM))) if rule else ()
        self._found.nodes.append(_record(kind, node, where, rule=rule, sources=sources))
        for name, body in _bodies_by_name(node).items():
            for inner in self._nodes(body, 0 if kind == "removed" else 1):
                self._alone(kind, inner, _inside(where, name, node))

    def _pair(self, node: ir.Node, other: ir.Node, where: str) -> None:
        changes = [
            *_mapping_changes("", *(attributes_of(n, o.get(n.domain, 0)) for n, o in zip((node, other), self._opsets))),
            *self._input_changes(node, other),
        ]
        if [bool(out.name) for out in node.outputs] != [bool(out.name) for out in other.outputs]:
            changes.append(Change("outputs", _listed(node.outputs), _listed(other.outputs)))
        mine, theirs = _bodies_by_name(node), _bodies_by_name(other)
        for name in [*mine, *(n for n in theirs if n not in mine)]:
            changes += self._body(name, mine.get(name), theirs.get(name), node, where)
        if changes:
            self._found.nodes.append(_record("changed", node, where, tuple(changes)))
            return
        self._found.nodes_same += 1
        names = [
            Change(what, a, b)
            for what, a, b in [
                ("name", node.name, other.name),
                *((f"output {i}", x.name, y.name) for i, (x, y) in enumerate(zip(node.outputs, other.outputs))),
            ]
            if (a or "") != (b or "")
        ]
        if names:
            self._found.renamed.append(_record("renamed", node, where, tuple(names)))

    def _body(self, name: str, old: ir.Graph | None, new: ir.Graph | None, node: ir.Node, where: str) -> list[Change]:
        if old is None or new is None:
            return [Change(name, None if old is None else "a graph", None if new is None else "a graph")]
        self._matching.value.update(zip(old.inputs, new.inputs))
        self._graphs(old, new, _inside(where, name, node))
        if len(old.inputs) != len(new.inputs):
            return [Change(f"inputs of {name}", str(len(old.inputs)), str(len(new.inputs)))]
        types = [[_type(v) for v in graph.inputs] for graph in (old, new)]
        return [] if types[0] == types[1] else [Change(f"input types of {name}", *(", ".join(t) for t in types))]

    def _input_changes(self, node: ir.Node, other: ir.Node) -> list[Change]:
        mine, theirs = inputs_of(node), inputs_of(other)
        longest = max(len(mine), len(theirs))
        pairs = zip(mine + [None] * (longest - len(mine)), theirs + [None] * (longest - len(theirs)))
        return [
            Change(f"input {i}", _origin(a), _origin(b)) for i, (a, b) in enumerate(pairs) if not self._same_value(a, b)
        ]

    def _same_value(self, old: ir.Value | None, new: ir.Value | None) -> bool:
        if old is None or new is None:
            return old is new
        if self._constants.is_constant(old) or self._constants.is_constant(new):
            return self._constants.unite(old, new)
        return self._matching.value.get(old) is new


# ---- text of things


def _record(kind: Any, node: ir.Node, where: str, changes: tuple[Change, ...] = (), **more: Any) -> NodeChange:
    domain = f"{node.domain}::" if node.domain else ""
    inputs = tuple("" if v is None else v.name or "" for v in inputs_of(node))
    outputs = tuple(out.name or "" for out in node.outputs)
    return NodeChange(kind, where, f"{domain}{node.op_type}", node.name or "", inputs, outputs, changes, **more)


def _origin(value: ir.Value | None) -> str | None:
    """What an input reads: a value with the operator that computes it."""
    if value is None:
        return None
    producer = value.producer()
    if producer is None or producer.op_type == "Constant":
        known = value.const_value
        small = known is not None and known.size == 1 and not isinstance(known, ir.StringTensor)
        return f"{value.name} = {known.numpy().reshape(-1)[0]}" if known is not None and small else f"{value.name}"
    return f"{value.name} of {producer.op_type}"


def _listed(values: Sequence[ir.Value]) -> str:
    return ", ".join(value.name or "-" for value in values)


def _type(value: ir.Value) -> str:
    return "any" if value.type is None else repr(value.type)


def _bodies_by_name(node: ir.Node) -> dict[str, ir.Graph]:
    if not bodies(node):
        return {}
    found: dict[str, ir.Graph] = {}
    for name, attr in node.attributes.items():
        if attr.type == ir.AttributeType.GRAPH and not attr.is_ref():
            found[name] = attr.as_graph()
        elif attr.type == ir.AttributeType.GRAPHS and not attr.is_ref():
            found.update({f"{name}[{i}]": graph for i, graph in enumerate(attr.as_graphs())})
    return found


def _inside(where: str, body: str, node: ir.Node) -> str:
    name = node.name or (node.outputs[0].name if node.outputs else "")
    here = f"{body} of {node.op_type} {name!r}"
    return f"{here} in {where}" if where else here


def _interface(function: ir.Function) -> str:
    attributes = ", ".join(sorted(function.attributes))
    return f"{len(function.inputs)} inputs, {len(function.outputs)} outputs" + (attributes and f", {attributes}")


def _op_counts(old: ir.Model, new: ir.Model) -> dict[str, tuple[int, int]]:
    counts = [
        collections.Counter(
            f"{n.domain}::{n.op_type}" if n.domain else n.op_type for r in roots(m) for n in r.all_nodes()
        )
        for m in (old, new)
    ]
    return {op: (counts[0][op], counts[1][op]) for op in sorted(counts[0] | counts[1])}


def _model_changes(old: ir.Model, new: ir.Model) -> list[Change]:
    """What stands beside the graph: versions, producer, metadata."""
    found = []
    for what, a, b in (
        ("IR version", old.ir_version, new.ir_version),
        ("producer", old.producer_name, new.producer_name),
        ("producer version", old.producer_version, new.producer_version),
        ("domain", old.domain, new.domain),
        ("model version", old.model_version, new.model_version),
        ("doc string", old.doc_string, new.doc_string),
        ("graph name", old.graph.name, new.graph.name),
        ("graph doc string", old.graph.doc_string, new.graph.doc_string),
    ):
        if (a or None) != (b or None):
            found.append(Change(what, str(a) if a else None, str(b) if b else None))
    found += _mapping_changes("opset of ", _domains(old), _domains(new))
    found += _mapping_changes("metadata ", old.metadata_props, new.metadata_props)
    found += _mapping_changes("graph metadata ", old.graph.metadata_props, new.graph.metadata_props)
    return found


def _domains(model: ir.Model) -> dict[str, int]:
    return {domain or "ai.onnx": version for domain, version in model.opset_imports.items()}


def _mapping_changes(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    return [
        Change(f"{prefix}{key}", _shown(old.get(key)), _shown(new.get(key)))
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key) != new.get(key)
    ]


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
