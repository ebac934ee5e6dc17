"""The MNGraph: a planned graph is an onnx_ir model whose nodes stand in scheduled order and whose values are placed.

Besides the compiled graph's own operators it has nodes that move data. They are calls of local functions (domain
`pfvm`) with Identity bodies, so that any ONNX runtime runs the file and Netron opens it:

    MNCoreDownload       DRAM → local memory          MNCoreUpload         local memory → DRAM
    MNCoreLayoutSwitch   another layout               MNCoreRefillPadding  padding set to a value (attribute pad)
    MNCoreCast           another device dtype         Identity             the other local memory
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from .placement import KEY, find_placement

DOMAIN = "pfvm"
DOWNLOAD, UPLOAD = "MNCoreDownload", "MNCoreUpload"
LAYOUT_SWITCH, REFILL, CAST = "MNCoreLayoutSwitch", "MNCoreRefillPadding", "MNCoreCast"
MOVES = (DOWNLOAD, UPLOAD, LAYOUT_SWITCH, REFILL, CAST)
GATHERED = "pfvm.gathered"  # node metadata: its operands are collected through the tree, not read where they lie
REUSES = "pfvm.reuses"  # node metadata: its output is its first input's memory (a reshape, a transpose)


def move_node(kind: str, source: ir.Value, name: str, attributes: Iterable[ir.Attr] = ()) -> ir.Node:
    """A node of one of MOVES that is not in a graph yet; its output has the type and shape of its input."""
    node = ir.Node(DOMAIN, kind, [source], list(attributes), num_outputs=1, name=name)
    out = node.outputs[0]
    out.name, out.type, out.shape = name, source.type, source.shape
    return node


def is_move(node: ir.Node) -> bool:
    """Does the node only move, re-lay, refill or convert?"""
    return node.domain == DOMAIN and node.op_type in MOVES


def declare_moves(model: ir.Model) -> None:
    """Adds the local functions of the moves that the graph has; calling it again changes nothing."""
    used = {node.op_type for node in model.graph if is_move(node)}
    for kind in sorted(used):
        if (DOMAIN, kind, "") not in model.functions:
            model.functions[DOMAIN, kind, ""] = _identity_function(kind, model.opset_imports[""])
    if used:
        model.opset_imports.setdefault(DOMAIN, 1)


def _identity_function(kind: str, opset: int) -> ir.Function:
    source = ir.Value(name="x")
    node = ir.Node("", "Identity", [source], num_outputs=1)
    node.outputs[0].name = "y"
    graph = ir.Graph([source], node.outputs, nodes=[node], opset_imports={"": opset}, name=kind)
    attributes = [ir.Attr("pad", ir.AttributeType.STRING, "Zero")] if kind == REFILL else []
    return ir.Function(DOMAIN, kind, graph=graph, attributes=attributes)


def save_placements(model: ir.Model) -> None:
    """Writes every placement to its value's metadata, where a file keeps it."""
    for value in values(model):
        placement = find_placement(value)
        if placement is not None:
            value.metadata_props[KEY] = placement.to_json()


def values(model: ir.Model) -> list[ir.Value]:
    """All values of the graph: inputs, initializers, and the outputs of its nodes, in order."""
    graph = model.graph
    seen = {id(value): value for value in (*graph.inputs, *graph.initializers.values())}
    seen |= {id(out): out for node in graph for out in node.outputs}
    return list(seen.values())
