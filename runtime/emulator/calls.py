"""One call of an operator: its name, opset and attributes, with references to a caller's attributes resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.errors import UnsupportedOpError, describe_node

Functions = Mapping[tuple[str, str, str], ir.Function]

_SCALAR = {ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING}
_LIST = {ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS}


@dataclass(frozen=True)
class Call:
    """An operator with its attributes. version: the opset of its domain that holds where it stands."""

    node: ir.Node
    attributes: Mapping[str, ir.Attr]
    version: int
    functions: Functions

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.node.op_type

    @property
    def is_onnx(self) -> bool:
        """Is it one of ai.onnx?"""
        return self.node.domain == ""

    @property
    def body(self) -> ir.Function | None:
        """The local function that it calls."""
        return self.functions.get(self.node.op_identifier())

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value: a number, a string, a tuple, or an array."""
        attr = self.attributes.get(name)
        if attr is None or attr.value is None:
            return default
        if attr.type in _SCALAR:
            return attr.value
        if attr.type in _LIST:
            return tuple(attr.value)
        if attr.type == ir.AttributeType.TENSOR:
            return np.asarray(attr.value.numpy())
        raise UnsupportedOpError(f"{describe_node(self.node)}: attribute {name!r} is not a number, text or tensor")


def call_of(node: ir.Node, functions: Functions, opsets: Mapping[str, int], outer: Call | None = None) -> Call:
    """The call that a node makes; `outer` is the call of the function in whose body it stands."""
    attributes = {}
    for name, attr in node.attributes.items():
        found: ir.Attr | None = attr
        if attr.ref_attr_name:
            found = _resolved(attr.ref_attr_name, outer)
        if found is not None:
            attributes[name] = ir.Attr(name, found.type, found.value)
    return Call(node, attributes, opsets.get(node.domain, 1), functions)


def _resolved(name: str, outer: Call | None) -> ir.Attr | None:
    if outer is None or outer.body is None:
        return None
    if name in outer.attributes:
        return outer.attributes[name]
    default = outer.body.attributes.get(name)
    return default if default is not None and default.value is not None else None
