"""eliminate-common-subexpressions: compute and store equal things once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import ChainMap
from typing import Any, ClassVar

import onnx_ir as ir

from . import tensor_bytes
from .effects import Effect, bodies
from .rewriter import Rewriter
from .view import constant_tensor


@dataclasses.dataclass(frozen=True)
class EliminateCommonSubexpressions:
    """Merge pure nodes with equal operator, inputs and attributes, and initializers with equal bytes.

    before:  x ─ Relu ─ a ─┐              after:  x ─ Relu ─ a ─┬ Add
             x ─ Relu ─ b ─┴ Add                                └

    A node in a body may be served by one that every path to the body has computed. Overridable initializers, random
    and training-mode nodes are never merged.
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"

    def run(self, rw: Rewriter) -> None:
        for graph in rw.scopes():
            if rw.root(graph) is graph:
                _visit(graph, rw, ChainMap(), ChainMap())


Key = tuple[Any, ...]


def _visit(graph: ir.Graph, rw: Rewriter, seen: ChainMap[Key, ir.Node], tensors: ChainMap[Key, ir.Value]) -> None:
    """One scope; an inner scope sees the tables of the outer ones, and leaks nothing to its siblings."""
    for value in list(graph.initializers.values()):
        _merge_initializer(value, rw, tensors)
    for node in graph:
        for body in bodies(node):
            _visit(body, rw, seen.new_child(), tensors.new_child())
        key = _key(node)
        if key is None or rw.effect(node) is not Effect.PURE:
            continue
        first = seen.get(key)
        if first is None:
            seen[key] = node
        elif all(rw.can_replace(a, b) for a, b in zip(node.outputs, first.outputs)):
            rw.replace(node, *first.outputs)
            rw.matched("common node")


def _key(node: ir.Node) -> Key | None:
    """What makes two nodes equal; None for nodes with bodies, which are never merged."""
    if bodies(node):
        return None
    attributes = []
    for name, attr in sorted(node.attributes.items()):
        attributes.append((name, attr.type, _attribute_key(attr)))
    return (
        node.op_identifier(),
        tuple(None if v is None else id(v) for v in node.inputs),
        tuple(attributes),
        tuple(bool(out.name) for out in node.outputs),
    )


def _attribute_key(attr: ir.Attr) -> Any:
    if attr.is_ref():
        return ("ref", attr.ref_attr_name)
    if attr.type in (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING, ir.AttributeType.STRINGS):
        return attr.value if not isinstance(attr.value, list) else tuple(attr.value)
    if attr.type == ir.AttributeType.TENSOR and attr.as_tensor().dtype != ir.DataType.STRING:
        return _tensor_key(attr.as_tensor())
    return ir.serde.serialize_attribute(attr).SerializeToString(deterministic=True)


def _tensor_key(tensor: ir.TensorProtocol) -> Key:
    return (tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest())


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
