"""Attribute values of a node: references into the calling function, and defaults of the operator schema."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

MISSING: Any = object()


def resolve(node: ir.Node, name: str, bound: Mapping[str, ir.Attr]) -> ir.Attr | None:
    """The attribute `name` of `node`; a reference is looked up in `bound`, the attributes of the function's caller."""
    attribute = node.attributes.get(name)
    if attribute is not None and attribute.is_ref():
        return bound.get(attribute.ref_attr_name or "")
    return attribute


def value_of(attribute: ir.Attr) -> Any:
    """Python value: int, float, str, list, numpy array (tensors) or onnx_ir graph."""
    match attribute.type:
        case ir.AttributeType.TENSOR:
            return attribute.value.numpy()
        case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
            return list(attribute.value)
        case _:
            return attribute.value


@functools.lru_cache(maxsize=4096)
def schema_default(domain: str, op_type: str, opset: int, name: str) -> Any:
    """The default that the operator schema gives at `opset`, or None (optional without default, unknown operator)."""
    if not onnx.defs.has(op_type, domain):
        return None
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    declared = schema.attributes.get(name)
    if declared is None or declared.default_value.type == onnx.AttributeProto.UNDEFINED:
        return None
    return value_of(ir.serde.deserialize_attribute(declared.default_value))
