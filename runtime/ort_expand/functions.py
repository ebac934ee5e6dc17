"""Operators that their schema, or the model, defines by other operators: the body as nodes in the place of the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from .node import Builder, Node


def schema_body(node: Node) -> onnx.FunctionProto | None:
    """The function body that the operator's schema gives for this node and its types, or None."""
    schema = node.schema
    if schema is None:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= node.opset]
        if not versions:
            return None
        body.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    elif schema.has_context_dependent_function:
        text = _context_dependent(node)
        if text is None:
            return None
        body.ParseFromString(text)
    else:
        return None
    return body if body.node else None


def has_body(schema: Any) -> bool:
    """Does a schema define its operator by others, for some node at least?"""
    return schema.has_function or schema.has_context_dependent_function


def _context_dependent(node: Node) -> bytes | None:
    schema = node.schema
    types = [node.scope.type_of(name) for name in node.inputs]
    if any(kind is None and name for kind, name in zip(types, node.inputs)):
        return None
    arguments = node.proto.SerializeToString(), [b"" if k is None else k.SerializeToString() for k in types]
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.opset]
    if versions:
        return schema.get_context_dependent_function_with_opset_version(max(versions), *arguments)
    return schema.get_context_dependent_function(*arguments)


def inline(node: Node, body: onnx.FunctionProto, builder: Builder) -> list[str]:
    """Writes the body's nodes with the call's inputs and attributes; returns the names of the outputs."""
    names = dict.fromkeys(body.input, "")
    names.update(zip(body.input, node.inputs))
    attributes = {a.name: a for a in body.attribute_proto}
    if node.schema is not None:
        declared = [a.default_value for a in node.schema.attributes.values() if a.default_value.type]
        attributes = {**{a.name: a for a in declared}, **attributes}
    attributes.update({a.name: a for a in node.proto.attribute})
    for inner in body.node:
        proto = onnx.NodeProto()
        proto.CopyFrom(inner)
        _bind(proto, attributes)
        for name in proto.output:
            if name:
                names[name] = builder.fresh()
        rename(proto, names)
        builder.nodes.append(proto)
    return [names.get(name, "") for name in body.output]


def _bind(proto: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Replaces references to the function's attributes by what the call says, or leaves them out."""
    kept = []
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attributes:
                continue
            bound = onnx.AttributeProto()
            bound.CopyFrom(attributes[attribute.ref_attr_name])
            bound.name = attribute.name
            attribute = bound
        for graph in graphs_of(attribute):
            for inner in graph.node:
                _bind(inner, attributes)
        kept.append(attribute)
    copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
    del proto.attribute[:]
    proto.attribute.extend(copies)


def rename(proto: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Renames what a node and its bodies read and write; names that a body defines itself hide outer ones."""
    _rename_list(proto.input, names)
    _rename_list(proto.output, names)
    for attribute in proto.attribute:
        for graph in graphs_of(attribute):
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own |= {name for node in graph.node for name in node.output}
            outer = {old: new for old, new in names.items() if old not in own}
            for node in graph.node:
                rename(node, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)


def _rename_list(field: Any, names: Mapping[str, str]) -> None:
    for index, name in enumerate(field):
        if name:
            field[index] = names.get(name, name)


def graphs_of(attribute: onnx.AttributeProto) -> Iterable[onnx.GraphProto]:
    """The bodies that an attribute holds."""
    return [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """Nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                yield from all_nodes(graph.node)
