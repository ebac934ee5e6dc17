"""Operators without a rule of their own whose ONNX schema defines them as a function of other operators."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir


class SchemaFunctions:
    """Builds and keeps the function body that the operator schema gives for a node and its operand types."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[ir.Node, tuple[str, ...]], ir.Function | None] = {}
        self._lock = threading.Lock()

    def get(self, node: ir.Node, opset: int, operands: Sequence[Any]) -> ir.Function | None:
        """The body as a function, or None where the schema has none. One object per node and operand types."""
        types = [b"" if o is None else _type_proto(o) for o in operands]
        key = (node, tuple(t.hex() for t in types))
        with self._lock:
            if key not in self._bodies:
                self._bodies[key] = _build(node, opset, types)
            return self._bodies[key]


def has_schema_function(domain: str, op_type: str, opset: int) -> bool:
    """Does the operator schema at `opset` define the operator by other operators?"""
    schema = _schema(domain, op_type, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _schema(domain: str, op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _type_proto(operand: Any) -> bytes:
    dtype = ir.DataType.from_numpy(operand.dtype)
    return onnx.helper.make_tensor_type_proto(dtype.value, list(operand.shape)).SerializeToString()


def _build(node: ir.Node, opset: int, types: list[bytes]) -> ir.Function | None:
    schema = _schema(node.domain, node.op_type, opset)
    if schema is None:
        return None
    proto = onnx.FunctionProto()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset] or schema.function_opset_versions
        proto.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    elif schema.has_context_dependent_function:
        body = _context_dependent(schema, node, opset, types)
        if not body:
            return None
        proto.ParseFromString(body)
    else:
        return None
    defaults = [a.default_value for a in schema.attributes.values() if a.default_value.type != 0]
    declared = {a.name for a in proto.attribute_proto}
    proto.attribute_proto.extend(a for a in defaults if a.name not in declared)
    return ir.serde.deserialize_function(proto)


def _context_dependent(schema: onnx.defs.OpSchema, node: ir.Node, opset: int, types: list[bytes]) -> bytes:
    call = ir.serde.serialize_node(node).SerializeToString()
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if versions:
        return schema.get_context_dependent_function_with_opset_version(max(versions), call, types)
    return schema.get_context_dependent_function(call, types)
