"""eliminate-common-subexpressions: compute and store equal things once."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from typing import ClassVar

import onnx_ir as ir

from . import tensor_bytes
from .dims import static_shape
from .effects import bodies
from .graph_key import Key, node_key
from .rewriter import Rewriter
from .splice import may_replace_outputs
from .view import constant_tensor


@dataclasses.dataclass(frozen=True)
class EliminateCommonSubexpressions:
    """Merge pure nodes with equal operator, inputs and attributes, and initializers with equal bytes.

    before:  x ─ Relu ─ a ─┐              after:  x ─ Relu ─ a ─┬ Add
             x ─ Relu ─ b ─┴ Add                                └

    Shape arithmetic is equal where its symbolic result is. A node in a body may be served by one that every path to the
    body has computed; an If, Loop or Scan is equal to one whose bodies compute the same. Overridable initializers,
    random and training-mode nodes are never merged.
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"

    def run(self, rw: Rewriter) -> None:
        for graph in rw.scopes():
            if rw.root(graph) is graph:
                _visit(graph, rw, ChainMap(), ChainMap())


def _visit(graph: ir.Graph, rw: Rewriter, seen: ChainMap[Key, ir.Node], tensors: ChainMap[Key, ir.Value]) -> None:
    """One scope; an inner scope sees the tables of the outer ones, and leaks nothing to its siblings."""
    for value in list(graph.initializers.values()):
        _merge_initializer(value, rw, tensors)
    for node in graph:
        for body in bodies(node):
            _visit(body, rw, seen.new_child(), tensors.new_child())
        key = node_key(node, rw)
        if key is None:
            continue
        contents = _contents_key(node, rw)
        first = _standing(seen, key) or (_standing(seen, contents) if contents is not None else None)
        if first is None:
            seen[key] = node
            if contents is not None:
                seen[contents] = node
        elif all(rw.can_replace(a, b) for a, b in zip(node.outputs, first.outputs)):
            rw.replace(node, *first.outputs)
            rw.matched("common node")
        elif len(node.outputs) == 1 and node.op_type != "Identity" and may_replace_outputs(node, rw):
            # two outputs of the graph, each under its name
            copy = rw.op("Identity", first.outputs[0], at=node)
            rw.replace(node, copy.outputs[0])
            rw.matched("common node")
        else:
            _share_outputs(node, first, rw)


def _share_outputs(node: ir.Node, first: ir.Node, rw: Rewriter) -> None:
    """Of equal nodes that both stay, since both compute outputs of the graph, read what the first one computes."""
    pairs = [(a, b) for a, b in zip(node.outputs, first.outputs) if a.uses() and rw.can_replace(a, b)]
    for own, other in pairs:
        rw.replace_value(own, other)
    if pairs:
        rw.matched("common output")
    else:
        rw.reject("common node", "an output of the graph keeps a value of its own", node)


def _standing(seen: ChainMap[Key, ir.Node], key: Key) -> ir.Node | None:
    """What was seen, unless it died with a reader that was merged."""
    node = seen.get(key)
    return node if node is not None and node.graph is not None else None


def _contents_key(node: ir.Node, rw: Rewriter) -> Key | None:
    """Equal for shape arithmetic of equal symbolic results: Gather(Shape(x), 0) and Gather(Shape(Relu(x)), 0)."""
    out = node.outputs[0]
    contents = rw.shapes.contents(out) if len(node.outputs) == 1 else None
    shape = static_shape(out)
    if not contents or shape is None or out.dtype is None:
        return None
    dims = [dim if isinstance(dim, int) else dim.value for dim in contents]
    return None if None in dims else ("contents", out.dtype, shape, *dims)


def _merge_initializer(value: ir.Value, rw: Rewriter, tensors: ChainMap[Key, ir.Value]) -> None:
    """Merge into an equal one; bytes are read only when another initializer has the same type, shape and sample."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING or value.is_graph_output():
        return
    kind: Key = (tensor.dtype, tuple(tensor.shape.numpy()))
    for look in (tensor_bytes.sample, tensor_bytes.digest):
        alike = tensors.get(kind)
        if alike is None:
            tensors[kind] = value
            return
        tensors.setdefault((*kind, look(alike)), alike)
        kind = (*kind, look(value))
    first = tensors.setdefault(kind, value)
    if first is not value:
        rw.replace_value(value, first)
        rw.drop_initializer(value)
        rw.matched("common initializer")
