"""Keys of nodes: equal from above when they compute the same, equal from below when the same is made of them.

Keys are small integers that stand for nested tuples, shared by both models: no collisions, and linear time.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from pfvm.passes import schema
from pfvm.passes.effects import bodies

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class Interner:
    """Tuples → small integers."""

    def __init__(self) -> None:
        self._ids: dict[Any, int] = {}

    def __call__(self, key: Any) -> int:
        return self._ids.setdefault(key, len(self._ids))


def attributes_of(node: ir.Node, opset: int) -> dict[str, Any]:
    """Attributes without graphs as comparable values; what only says the operator's default is left out."""
    found: dict[str, Any] = {}
    for name, attr in node.attributes.items():
        if attr.type in _GRAPHS and not attr.is_ref():
            continue
        key = _attribute(attr)
        if not schema.has_attribute(node.domain, node.op_type, opset, name):
            found[name] = key
            continue
        default = schema.attribute_default(node.domain, node.op_type, opset, name)
        if default is None or key != (tuple(default) if isinstance(default, list) else default):
            found[name] = key
    return found


def _attribute(attr: ir.Attr) -> Any:
    if attr.is_ref():
        return ("ref", attr.ref_attr_name)
    if isinstance(attr.value, (int, str)):
        return attr.value
    if attr.type in (ir.AttributeType.INTS, ir.AttributeType.STRINGS, ir.AttributeType.FLOATS):
        return tuple(attr.value)
    if attr.type == ir.AttributeType.FLOAT:
        return float(attr.value)
    if attr.type == ir.AttributeType.TENSOR:
        tensor = attr.as_tensor()
        content = tuple(tensor.numpy().reshape(-1).tolist()) if tensor.size <= 16 else tensor.tobytes()
        return (tensor.dtype.name.lower(), tuple(tensor.shape.numpy()), content)
    return ir.serde.serialize_attribute(attr).SerializeToString(deterministic=True)


def inputs_of(node: ir.Node) -> list[ir.Value | None]:
    """Without absent ones at the end."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


class Keys:
    """Keys of one model's nodes. `token` names what graphs start from: inputs and constants."""

    def __init__(self, intern: Interner, token: Mapping[ir.Value, object], skip: Mapping[ir.Node, None]) -> None:
        self._intern, self._token, self._skip = intern, token, skip
        self.up: dict[ir.Node, int] = {}
        self.down: dict[ir.Node, int] = {}
        self._values: dict[ir.Value, int] = {}
        self._attributes: dict[ir.Node, int] = {}

    def graph(self, graph: ir.Graph, opsets: Mapping[str, int], depth: int = 0) -> int:
        """Compute the keys of a graph's nodes and of the bodies in it. Returns the key of the whole from above."""
        for position, value in enumerate(graph.inputs):
            start = self._token.get(value, ("formal", depth, position))
            self._values[value] = self._intern(("start", start))
        for value in graph.initializers.values():
            self._values[value] = self._intern(("start", self._token.get(value, ("unknown", id(value)))))
        nodes = [node for node in graph if node not in self._skip]
        for node in self._skip_of(graph):
            self._values[node.outputs[0]] = self._intern(("start", self._token[node.outputs[0]]))
        for node in nodes:
            self._from_above(node, opsets, depth)
        self._from_below(graph, nodes)
        outputs = tuple(self._values.get(out, -1) for out in graph.outputs)
        kinds = tuple(repr(value.type) for value in graph.inputs) if depth else ()
        return self._intern(("graph", kinds, outputs, tuple(sorted(self.up[node] for node in nodes))))

    def _skip_of(self, graph: ir.Graph) -> list[ir.Node]:
        return [node for node in graph if node in self._skip] if self._skip else []

    def _from_above(self, node: ir.Node, opsets: Mapping[str, int], depth: int) -> None:
        own = self._intern(tuple(sorted(attributes_of(node, opsets.get(node.domain, 0)).items(), key=repr)))
        inner = tuple(self.graph(body, opsets, depth + 1) for body in bodies(node))
        self._attributes[node] = own
        inputs = tuple(None if v is None else self._values.get(v, -1) for v in inputs_of(node))
        present = tuple(bool(out.name) for out in node.outputs)
        key = self.up[node] = self._intern(("node", node.op_identifier(), own, inner, inputs, present))
        for i, out in enumerate(node.outputs):
            self._values[out] = self._intern(("out", key, i))

    def _from_below(self, graph: ir.Graph, nodes: list[ir.Node]) -> None:
        """What reads a node, down to the graph's outputs; a use in a body is one of the node that has it."""
        positions: dict[ir.Value, list[int]] = collections.defaultdict(list)
        for i, value in enumerate(graph.outputs):
            positions[value].append(i)
        captured: dict[ir.Value, list[ir.Node]] = collections.defaultdict(list)
        for node in nodes:
            inner = [n for body in bodies(node) for n in body.all_nodes()]
            for value in dict.fromkeys(v for n in inner for v in n.inputs if v is not None):
                captured[value].append(node)
        for node in reversed(nodes):
            readers = []
            for out in node.outputs:
                uses = [(self.down[use.node], use.idx) for use in out.uses() if use.node in self.down]
                uses += [(self.down[reader], -1) for reader in captured.get(out, ())]
                readers.append((tuple(sorted(uses)), tuple(positions.get(out, ()))))
            starts = tuple(
                None if v is None else self._token.get(v) if v in self._token else "?" for v in inputs_of(node)
            )
            self.down[node] = self._intern(
                ("below", node.op_identifier(), self._attributes[node], starts, tuple(readers))
            )
