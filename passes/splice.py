"""Putting the nodes of a body into the graph around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from . import schema
from .effects import bodies
from .rewriter import Rewriter
from .tensor_bytes import content
from .view import constant_tensor, renamed


def splice(body: ir.Graph, at: ir.Node, formals: Mapping[ir.Value, ir.Value], rw: Rewriter) -> list[ir.Value]:
    """Copy a body's nodes before `at`, its inputs replaced as `formals` says; returns the values of its outputs.

    Every copy gets names of its own; the body's initializers become constants of the scope of `at`. An output may be
    one of the values of `formals`.
    """
    values: dict[ir.Value, ir.Value] = dict(formals)
    return [values[out] for out in _Copier(rw, at, values).copy(body)]


class _Copier:
    def __init__(self, rw: Rewriter, at: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
        self.rw, self.at, self.values = rw, at, values
        self.keeps_names = False

    def copy(self, body: ir.Graph) -> list[ir.Value]:
        for value in body.initializers.values():
            self.values[value] = self.rw.constant(own_tensor(content(value)), str(value.name), self.at)
        for node in body:
            tensor = constant_tensor(node.outputs[0]) if node.outputs else None
            if tensor is not None and not self.rw.in_function(self.at):  # as the importer has them
                self.values[node.outputs[0]] = self.rw.constant(own_tensor(tensor), str(node.outputs[0].name), self.at)
                continue
            copied = copy_node(node, self._read(node), self._attributes(node), self.at, self.rw)
            copied.metadata_props.update(node.metadata_props)
            self.values.update(zip(node.outputs, copied.outputs))
        return list(body.outputs)

    def _read(self, node: ir.Node) -> list[ir.Value | None]:
        return [None if value is None else self.values.get(value, value) for value in node.inputs]

    def _attributes(self, node: ir.Node) -> list[ir.Attr]:
        """With copies of its bodies. Names in those of another domain's operator stay: it may know them."""
        outside = self.keeps_names
        self.keeps_names = outside or node.domain not in schema.STANDARD_DOMAINS
        found = [self._attribute(attr) for attr in node.attributes.values()]
        self.keeps_names = outside
        return found

    def _name(self, name: str) -> str:
        return name if self.keeps_names else self.rw.unique_name(name)

    def _attribute(self, attr: ir.Attr) -> ir.Attr:
        if attr.is_ref() or attr.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return attr
        if attr.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attr.name, self._nested(attr.as_graph()))
        return ir.AttrGraphs(attr.name, [self._nested(graph) for graph in attr.as_graphs()])

    def _nested(self, graph: ir.Graph) -> ir.Graph:
        """A body within the body: a graph again."""
        formals = [self._formal(value) for value in graph.inputs]
        initializers = [self._formal(value) for value in graph.initializers.values()]
        nodes = []
        for node in graph:
            copied = ir.Node(
                node.domain,
                node.op_type,
                self._read(node),
                self._attributes(node),
                overload=node.overload,
                num_outputs=len(node.outputs),
                name=self._name(node.name) if node.name else None,
                doc_string=node.doc_string,
                metadata_props=dict(node.metadata_props),
            )
            for old, new in zip(node.outputs, copied.outputs):
                new.name = self._name(old.name) if old.name else ""
                new.type, new.shape = old.type, old.shape
                new.meta.update(old.meta)
                self.values[old] = new
            self.rw.provenance.copied(copied, node)
            nodes.append(copied)
        return ir.Graph(
            formals, [self.values[out] for out in graph.outputs], nodes=nodes, initializers=initializers,
            name=graph.name, doc_string=graph.doc_string,
        )  # fmt: skip

    def _formal(self, value: ir.Value) -> ir.Value:
        name = self._name(str(value.name))
        tensor = value.const_value
        copied = ir.Value(
            name=name,
            type=value.type,
            shape=value.shape,
            const_value=None if tensor is None else renamed(tensor, name),
            doc_string=value.doc_string,
            metadata_props=dict(value.metadata_props),
        )
        copied.meta.update(value.meta)
        self.values[value] = copied
        return copied


def copy_node(
    node: ir.Node, inputs: Sequence[ir.Value | None], attributes: Iterable[ir.Attr], at: ir.Node, rw: Rewriter
) -> ir.Node:
    """The node once more before `at`, on these inputs; its names are new, its metadata is that of `at`.

    It stands for the node that it is a copy of.
    """
    copied = rw.op(
        node.op_type, *inputs, at=at, domain=node.domain, overload=node.overload, outputs=len(node.outputs),
        name=node.name, attributes=attributes,
    )  # fmt: skip
    rw.provenance.copied(copied, node)
    for old, new in zip(node.outputs, copied.outputs):
        new.name = rw.unique_name(old.name) if old.name else ""
        if new.type is None:
            new.type = old.type
    return copied


def own_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor that may be renamed."""
    return renamed(tensor, f"{tensor.name}_copy")


def replace_outputs(node: ir.Node, values: list[ir.Value], rw: Rewriter) -> None:
    """Replace a node's outputs, by a copy where a graph output needs a value of its own, and erase the node."""
    ready: list[ir.Value] = []
    for old, new in zip(node.outputs, values):
        taken = old.is_graph_output() and (not rw.can_replace(old, new) or new in ready)
        ready.append(rw.op("Identity", new, at=node).outputs[0] if taken else new)
    rw.replace(node, *ready)


def may_replace_outputs(node: ir.Node, rw: Rewriter) -> bool:
    """Whether a copy could be made of every graph output: Identity takes sequences from opset 14 on, and never maps.

    A map has no type here; nor has what nobody knows the type of.
    """
    types = [out.type for out in node.outputs if out.is_graph_output()]
    if (rw.opset(node, "") or 0) >= 16:
        return None not in types
    return all(isinstance(each, ir.TensorType) for each in types)


def body_nodes(node: ir.Node) -> int:
    """Number of nodes in a node's bodies, nested ones included."""
    return sum(1 for body in bodies(node) for _ in body.all_nodes())
