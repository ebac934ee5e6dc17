"""Operators without a rule of their own whose ONNX schema defines them as a function of other operators."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from pfvm.passes.schema import find

# Their bodies need what the rules do not have: sequences.
_BODIES_WITHOUT_RULES = {"SequenceMap"}

_DOMAINS = ("", "ai.onnx.preview")


class SchemaFunctions:
    """Builds and keeps the function body that the operator schema gives for a node and its operand types."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[bytes, ...], ir.Function | None] = {}
        self._lock = threading.Lock()

    def get(
        self, node: ir.Node, bound: Mapping[str, ir.Attr], opset: int, operands: Sequence[Any]
    ) -> ir.Function | None:
        """The body as a function, or None where the schema has none. Equal calls get the same object.

        `bound` resolves the node's references to the attributes of an enclosing function.
        """
        types = [b"" if o is None else _type_proto(o) for o in operands]
        call = _resolved(node, bound)
        key = (call, str(opset).encode(), *types)
        with self._lock:
            if key not in self._bodies:
                self._bodies[key] = _build(node, call, opset, types)
            return self._bodies[key]


def has_schema_function(domain: str, op_type: str, opset: int) -> bool:
    """Does the operator schema at `opset` define the operator by other operators?"""
    schema = find(domain, op_type, opset)
    return schema is not None and _has_function(schema)


def schema_function_ops() -> dict[tuple[str, str], list[int]]:
    """(domain, operator) → the opset versions whose schema defines the operator by operators that have rules."""
    found: dict[tuple[str, str], list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in _DOMAINS and _has_function(schema):
            found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return found


def _has_function(schema: Any) -> bool:
    has_body = schema.has_function or schema.has_context_dependent_function
    return has_body and schema.name not in _BODIES_WITHOUT_RULES


def _type_proto(operand: Any) -> bytes:
    dtype = ir.DataType.from_numpy(operand.dtype)
    return onnx.helper.make_tensor_type_proto(dtype.value, list(operand.shape)).SerializeToString()


def _resolved(node: ir.Node, bound: Mapping[str, ir.Attr]) -> bytes:
    """The node as NodeProto bytes, with every reference replaced by what it refers to (or left out)."""
    proto = ir.serde.serialize_node(node)
    kept = [a for a in proto.attribute if not a.ref_attr_name]
    for attribute in node.attributes.values():
        referred = bound.get(attribute.ref_attr_name or "") if attribute.is_ref() else None
        if referred is not None:
            outer = ir.serde.serialize_attribute(referred)
            outer.name = attribute.name
            kept.append(outer)
    del proto.attribute[:]
    proto.attribute.extend(kept)
    return proto.SerializeToString(deterministic=True)


def _build(node: ir.Node, call: bytes, opset: int, types: list[bytes]) -> ir.Function | None:
    schema: Any = find(node.domain, node.op_type, opset)  # onnx does not declare what reads function bodies
    if schema is None or not _has_function(schema):
        return None
    proto = onnx.FunctionProto()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset] or schema.function_opset_versions
        proto.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    else:
        proto.ParseFromString(_context_dependent(schema, call, opset, types))
    _fill_outputs(proto)
    defaults = [a.default_value for a in schema.attributes.values() if a.default_value.type != 0]
    declared = {a.name for a in proto.attribute_proto}
    proto.attribute_proto.extend(a for a in defaults if a.name not in declared)
    required = [name for name in proto.attribute if name not in {a.name for a in proto.attribute_proto}]
    del proto.attribute[:]
    proto.attribute.extend(required)
    return ir.serde.deserialize_function(proto)


def _fill_outputs(proto: onnx.FunctionProto) -> None:
    """Optional outputs that the node leaves out are not computed by the body; any computed value keeps their place."""
    computed = {name for node in proto.node for name in node.output}
    first = next(name for name in proto.output if name in computed)
    outputs = [name if name in computed else first for name in proto.output]
    del proto.output[:]
    proto.output.extend(outputs)


def _context_dependent(schema: Any, call: bytes, opset: int, types: list[bytes]) -> bytes:
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if versions:
        return schema.get_context_dependent_function_with_opset_version(max(versions), call, types)
    return schema.get_context_dependent_function(call, types)
