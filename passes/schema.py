"""Operator schemas by opset: the one place that asks onnx what an operator looks like."""

from __future__ import annotations

import functools
from typing import Any

import onnx

# Domains whose operators onnx itself defines; "" is ai.onnx.
STANDARD_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"})

# Operators that old exporters and optimizers write into ai.onnx, that ONNX Runtime runs, and that the standard never
# had, or had only from a later opset on. They pass through; what is not known about them stays unknown.
EXTENSIONS = frozenset(
    {
        "Affine",
        "Crop",
        "DynamicSlice",
        "GRUUnit",
        "GivenTensorFill",
        "ImageScaler",
        "LayerNormalization",
        "MeanVarianceNormalization",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        "SimplifiedLayerNormalization",
        "ThresholdedRelu",
    }
)


@functools.cache
def find(domain: str, op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of an operator at an opset of its domain; None when that opset has no such operator."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def input_index(domain: str, op_type: str, opset: int, name: str) -> int | None:
    """Position of the formal input `name`, or None when this opset has no such input."""
    schema = find(domain, op_type, opset)
    if schema is None:
        return None
    return next((i for i, formal in enumerate(schema.inputs) if formal.name == name), None)


@functools.cache
def attribute_default(domain: str, op_type: str, opset: int, name: str) -> Any:
    """Default of an attribute as a Python value; None when it has none, KeyError when the attribute does not exist."""
    schema = find(domain, op_type, opset)
    if schema is None or name not in schema.attributes:
        raise KeyError(name)
    default = schema.attributes[name].default_value
    if default.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = onnx.helper.get_attribute_value(default)
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def has_attribute(domain: str, op_type: str, opset: int, name: str) -> bool:
    """Whether the operator takes the attribute at this opset."""
    schema = find(domain, op_type, opset)
    return schema is not None and name in schema.attributes


@functools.cache
def operators() -> frozenset[str]:
    """The names of all operators of ai.onnx, of any opset."""
    return frozenset(found.name for found in onnx.defs.get_all_schemas_with_history() if found.domain == "")


def newest_opset(domain: str = "") -> int:
    """The newest opset of a domain that the installed onnx knows; 0 for a domain it does not define."""
    return _newest().get(domain, 0)


@functools.cache
def _newest() -> dict[str, int]:
    newest = {"": onnx.defs.onnx_opset_version()}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain:
            newest[schema.domain] = max(newest.get(schema.domain, 0), schema.since_version)
    return newest
