"""When two nodes, or two graphs, compute the same from the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from . import schema
from .effects import Effect
from .rewriter import Rewriter
from .view import constant_tensor

Key = tuple[Any, ...]


def node_key(node: ir.Node, rw: Rewriter, local: Mapping[ir.Value, object] | None = None) -> Key | None:
    """Operator, inputs, attributes and which outputs there are; None for a node that is not pure.

    `local` names values by where they stand in their graph; others are themselves.
    """
    if rw.effect(node) is not Effect.PURE:
        return None
    attributes: dict[str, Key] = {}
    for name, attr in node.attributes.items():
        key = _attribute_key(attr, rw, local or {})
        if key is None:
            return None
        attributes[name] = attr.type, key
    if rw.is_standard(node):
        attributes = _spelled_out(node, rw.opset(node) or 0, attributes)
    return (
        node.op_identifier(),
        tuple(None if v is None else (local or {}).get(v, id(v)) for v in node.inputs),
        tuple(sorted(attributes.items())),
        tuple(bool(out.name) for out in node.outputs),
    )


def graph_key(graph: ir.Graph, rw: Rewriter, outer: Mapping[ir.Value, object] | None = None) -> Key | None:
    """Equal for two pure bodies that read the same outer values and differ in names alone."""
    local: dict[ir.Value, object] = dict(outer or {})
    depth = len(local)
    for value in graph.inputs:
        local[value] = ("input", depth, len(local), repr(value.type))
    for value in graph.initializers.values():
        tensor = constant_tensor(value)
        if tensor is None:
            return None
        local[value] = ("constant", _tensor_key(tensor))
    nodes = []
    for node in graph:
        key = node_key(node, rw, local)
        if key is None:
            return None
        nodes.append(key)
        for i, out in enumerate(node.outputs):
            local[out] = ("node", depth, len(nodes), i)
    return tuple(nodes), tuple(local.get(out, id(out)) for out in graph.outputs)


_AXES_OF_THE_RESULT = frozenset({"ConcatFromSequence", "OneHot", "Unsqueeze"})


def _spelled_out(node: ir.Node, opset: int, found: dict[str, Key]) -> dict[str, Key]:
    """Attributes as if none that says its default had been written, but an axis always, and counted from the first."""
    kept = {name: key for name, key in found.items() if not _is_default(node, name, key, opset)}
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    if shape is None or node.op_type in _AXES_OF_THE_RESULT:
        return kept
    rank = len(shape)
    kind, axis = found.get("axis", (ir.AttributeType.INT, _default(node, "axis", opset)))
    if isinstance(axis, int):
        kept["axis"] = kind, axis + rank if axis < 0 else axis  # a Flatten's may be the rank
    kind, axes = kept.get("axes", (ir.AttributeType.INTS, ()))
    if axes and all(isinstance(axis, int) for axis in axes):
        kept["axes"] = kind, tuple(axis + rank if axis < 0 else axis for axis in axes)
    return kept


def _is_default(node: ir.Node, name: str, key: Key, opset: int) -> bool:
    default = _default(node, name, opset)
    return default is not None and key[1] == default


def _default(node: ir.Node, name: str, opset: int) -> Any:
    """None for an attribute that has none, or that this operator has not got."""
    if not schema.has_attribute("", node.op_type, opset, name):
        return None
    default = schema.attribute_default("", node.op_type, opset, name)
    return tuple(default) if isinstance(default, list) else default


def _attribute_key(attr: ir.Attr, rw: Rewriter, local: Mapping[ir.Value, object]) -> Any:
    if attr.is_ref():
        return ("ref", attr.ref_attr_name)
    if attr.type == ir.AttributeType.GRAPH:
        return graph_key(attr.as_graph(), rw, local)
    if attr.type == ir.AttributeType.GRAPHS:
        return None
    if attr.type in (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING, ir.AttributeType.STRINGS):
        return attr.value if not isinstance(attr.value, list) else tuple(attr.value)
    if attr.type == ir.AttributeType.TENSOR and attr.as_tensor().dtype != ir.DataType.STRING:
        return _tensor_key(attr.as_tensor())
    return ir.serde.serialize_attribute(attr).SerializeToString(deterministic=True)


def _tensor_key(tensor: ir.TensorProtocol) -> Key:
    if tensor.dtype == ir.DataType.STRING:
        return (tensor.dtype, tuple(tensor.shape.numpy()), tuple(tensor.numpy().reshape(-1).tolist()))
    return (tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest())
