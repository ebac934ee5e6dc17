"""The MNGraph: a planned graph is an onnx_ir model whose nodes stand in scheduled order and whose values are placed.

Besides the compiled graph's own operators it has nodes that move data. They are calls of local functions (domain
`pfvm`) with Identity bodies, so that any ONNX runtime runs the file and Netron opens it:

    MNCoreDownload       DRAM → local memory          MNCoreUpload         local memory → DRAM
    MNCoreLayoutSwitch   another layout               MNCoreRefillPadding  padding set to a value (attribute pad)
    MNCoreCast           another device dtype         Identity             the other local memory

A LayoutSwitch writes DRAM where its result fits no local memory and all its readers may read it from there.

Graph outputs keep their names: they are what an Upload wrote to DRAM (or a reuse node of it there), and the value that
was computed in a local memory has the suffix `_Local`. An output with metadata `pfvm.state_of` has the address of that
input where nothing reads the old value after the new one is stored; else two addresses, which change places from one
call to the next. A node that runs again for a later reader is another node, its outputs `<v>_Recompute_<k>`
(metadata RECOMPUTED; the name alone means nothing).

Time slices. A node that does not fit a local memory runs once per slice, and what is sliced stays in DRAM, with one
subaxis of level Time: where the layout of a whole value has addresses `a:s`, the value in DRAM has `t_Time:1, a/t:s`,
and a slice has `a/t:s` and that many elements less; every element keeps its cell and its lane.

    MNCoreInputSplit(x; axis, indices)    → slice    DRAM → local memory: take(x, indices, axis)
    MNCoreOutputConcat(slices; axis, indices) → y    take(concat(slices, axis), indices, axis). It moves nothing: each
                                                     slice was stored in its part of y, one behind the other, and y
                                                     has the address of the first (metadata REUSES)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from .placement import KEY, find_placement

DOMAIN = "pfvm"
DOWNLOAD, UPLOAD = "MNCoreDownload", "MNCoreUpload"
LAYOUT_SWITCH, REFILL, CAST = "MNCoreLayoutSwitch", "MNCoreRefillPadding", "MNCoreCast"
INPUT_SPLIT, OUTPUT_CONCAT = "MNCoreInputSplit", "MNCoreOutputConcat"
MOVES = (DOWNLOAD, UPLOAD, LAYOUT_SWITCH, REFILL, CAST, INPUT_SPLIT, OUTPUT_CONCAT)
GATHERED = "pfvm.gathered"  # node metadata: its operands are collected through the tree, not read where they lie
OVER_ROWS = "pfvm.over_rows"  # node metadata: a product whose contracted axis is dealt to the cells that take rows; how
# many consecutive positions of it share an exponent, because one cell has them
RECOMPUTED = "pfvm.recomputed"  # node metadata: it computes again what another node did, for a later reader
REUSES = "pfvm.reuses"  # node metadata: its output is its first input's memory (a reshape, a transpose)


def move_node(kind: str, source: ir.Value, name: str, attributes: Iterable[ir.Attr] = ()) -> ir.Node:
    """A node of one of MOVES that is not in a graph yet; its output has the type and shape of its input."""
    node = ir.Node(DOMAIN, kind, [source], list(attributes), num_outputs=1, name=name)
    out = node.outputs[0]
    out.name, out.type, out.shape = name, source.type, source.shape
    return node


def copy_node(node: ir.Node, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value], suffix: str) -> ir.Node:
    """The same operation between other values, named `<node>_<suffix>`; it is not in a graph yet."""
    return ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        overload=node.overload,
        outputs=outputs,
        version=node.version,
        name=f"{node.name}_{suffix}" if node.name else None,
        metadata_props=dict(node.metadata_props),
    )


def is_move(node: ir.Node) -> bool:
    """Does the node only move, re-lay, refill or convert?"""
    return node.domain == DOMAIN and node.op_type in MOVES


def declare_moves(model: ir.Model) -> None:
    """Adds the local functions of the moves that the graph has; calling it again changes nothing."""
    used = {node.op_identifier(): node for node in model.graph if is_move(node)}
    for identifier, node in sorted(used.items()):
        if identifier not in model.functions:
            model.functions[identifier] = _function(node, model.opset_imports[""])
        if node.overload:
            model.ir_version = max(model.ir_version, _OVERLOADS)
    if used:
        model.opset_imports.setdefault(DOMAIN, 1)


_OVERLOADS = 10  # the IR version from which functions have overloads: one of MNCoreOutputConcat per number of slices


def _function(node: ir.Node, opset: int) -> ir.Function:
    """A function with the meaning of a move: take(x, indices, axis) for slices, Identity for all others."""
    inputs = [ir.Value(name=f"x{i}") for i in range(len(node.inputs))]
    attributes: list[ir.Attr] = []
    body: list[ir.Node] = []
    source = inputs[0]
    if node.op_type in (INPUT_SPLIT, OUTPUT_CONCAT):
        axis, indices = ir.AttributeType.INT, ir.AttributeType.INTS
        attributes = [ir.Attr("axis", axis, None), ir.Attr("indices", indices, None)]
        if len(inputs) > 1:
            body.append(ir.Node("", "Concat", inputs, [ir.RefAttr("axis", "axis", axis)], num_outputs=1))
            source = _named(body[-1], "whole")
        body.append(ir.Node("", "Constant", [], [ir.RefAttr("value_ints", "indices", indices)], num_outputs=1))
        positions = _named(body[-1], "positions")
        body.append(ir.Node("", "Gather", [source, positions], [ir.RefAttr("axis", "axis", axis)], num_outputs=1))
    else:
        body.append(ir.Node("", "Identity", [source], num_outputs=1))
    if node.op_type == REFILL:
        attributes = [ir.Attr("pad", ir.AttributeType.STRING, "Zero")]
    out = _named(body[-1], "y")
    graph = ir.Graph(inputs, [out], nodes=body, opset_imports={"": opset}, name=node.op_type)
    return ir.Function(DOMAIN, node.op_type, node.overload, graph=graph, attributes=attributes)


def _named(node: ir.Node, name: str) -> ir.Value:
    node.outputs[0].name = name
    return node.outputs[0]


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
