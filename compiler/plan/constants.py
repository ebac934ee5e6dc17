"""Small constants become Constant nodes at the head of the graph: they are part of the program."""

from __future__ import annotations

import onnx_ir as ir

from .mngraph import values

SMALL = 64
"""Elements of the largest constant that is part of the program; larger ones are initializers in DRAM."""


def place_constants(model: ir.Model) -> None:
    """Turns initializers of up to SMALL elements that no caller can override into Constant nodes, in order of use."""
    graph = model.graph
    order: dict[ir.Value, None] = {}
    for node in graph:
        for value in node.inputs:
            if value is not None and _is_small(value):
                order.setdefault(value)
    nodes = []
    for value in order:
        assert value.const_value is not None and value.name is not None
        graph.initializers.pop(value.name)
        node = constant_node(value, value.name)
        value.replace_all_uses_with(node.outputs[0])
        nodes.append(node)
    if nodes:
        first = next(iter(graph))
        graph.insert_before(first, nodes)


def constant_node(value: ir.Value, name: str) -> ir.Node:
    """A Constant node with the content of a constant, not in a graph yet; metadata as the value has."""
    tensor = value.const_value
    if tensor is None:
        producer = value.producer()
        assert producer is not None
        tensor = producer.attributes["value"].as_tensor()
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=name)
    out = node.outputs[0]
    out.name, out.type, out.shape = name, value.type, value.shape
    out.meta.update(value.meta)
    return node


def drop_unread(model: ir.Model) -> None:
    """Removes moves and constants that nobody reads any more, last first."""
    for node in reversed(list(model.graph)):
        plain = node.op_type == "Constant" or node.op_type.startswith("MNCore")
        if plain and not any(out.uses() or out.is_graph_output() for out in node.outputs):
            model.graph.remove(node, safe=True)
    read = {value for node in model.graph for value in node.inputs if value is not None}
    for value in values(model):
        unread = value.is_initializer() and not value.is_graph_input() and not value.is_graph_output()
        if unread and value not in read:
            model.graph.initializers.pop(value.name or "")


def _is_small(value: ir.Value) -> bool:
    return (
        value.is_initializer()
        and not value.is_graph_input()
        and not value.is_graph_output()
        and value.const_value is not None
        and value.const_value.size <= SMALL
    )
