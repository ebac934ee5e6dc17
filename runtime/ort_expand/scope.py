"""Types and small constants of the values that a node can see, worked out node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from pfvm.passes import schema

# Shapes, axes and scalars; larger constants are data that no rule looks at.
_SMALL = 1 << 12


class Scope:
    """What is known in one graph. A child scope sees its parent's values as well."""

    def __init__(self, imports: Mapping[str, int], ir_version: int, parent: Scope | None = None) -> None:
        self.imports = imports
        self.ir_version = ir_version
        self._types: dict[str, onnx.TypeProto] = dict(parent._types) if parent else {}
        self._constants: dict[str, np.ndarray] = dict(parent._constants) if parent else {}

    def child(self, imports: Mapping[str, int] | None = None) -> Scope:
        """A scope for a body; with imports of its own for a function, which sees no outer value."""
        if imports is not None:
            return Scope(imports, self.ir_version)
        return Scope(self.imports, self.ir_version, self)

    # ---- values

    def declare(self, graph: onnx.GraphProto) -> None:
        """Inputs and initializers of a graph."""
        self.note_types({v.name: v.type for v in graph.input if v.type.WhichOneof("value")})
        for tensor in graph.initializer:
            self.note_types({tensor.name: onnx.helper.make_tensor_type_proto(tensor.data_type, tuple(tensor.dims))})
            if tensor.data_location != onnx.TensorProto.EXTERNAL and int(np.prod(tensor.dims)) <= _SMALL:
                self._constants[tensor.name] = onnx.numpy_helper.to_array(tensor)
        # An input of the same name may be given another value by the caller.
        for value in graph.input:
            self._constants.pop(value.name, None)

    def note_types(self, types: Mapping[str, onnx.TypeProto]) -> None:
        """Records types; what is recorded already stays unless the new one says more."""
        for name, kind in types.items():
            if (
                name
                and kind.WhichOneof("value")
                and (name not in self._types or _says(kind) >= _says(self._types[name]))
            ):
                self._types[name] = kind

    def alias(self, name: str, outer: Scope, outer_name: str) -> None:
        """`name` here is the value `outer_name` of another scope."""
        kind = outer.type_of(outer_name)
        if kind is not None:
            self._types[name] = kind
        constant = outer.constant(outer_name)
        if constant is not None:
            self._constants[name] = constant

    def type_of(self, name: str) -> onnx.TypeProto | None:
        """The type of a value, as far as it is known."""
        return self._types.get(name)

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a small constant."""
        return self._constants.get(name)

    # ---- nodes

    def note_node(self, node: onnx.NodeProto) -> None:
        """Works out the types of a node's outputs. Bodies have been visited before their node."""
        if node.op_type == "Constant" and not node.domain:
            self._note_constant(node)
        self.note_types(self._inferred(node))

    def _note_constant(self, node: onnx.NodeProto) -> None:
        value = constant_of(node)
        if value is not None and value.size <= _SMALL:
            self._constants[node.output[0]] = value

    def _inferred(self, node: onnx.NodeProto) -> Mapping[str, onnx.TypeProto]:
        found = schema.find(node.domain, node.op_type, self.imports.get(node.domain, 0))
        if found is None:
            return {}
        given = {name: self._types[name] for name in node.input if name in self._types}
        data = {n: onnx.numpy_helper.from_array(self._constants[n], n) for n in node.input if n in self._constants}
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self.imports.items()]
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                found, node, given, input_data=data, opset_imports=imports, ir_version=self.ir_version
            )
        except Exception:  # unknown operands, bodies with captures, operators without inference: the types are left
            inferred = {}
        return {**self._by_parameter(found, node), **inferred}

    def _by_parameter(self, found: Any, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """Outputs have the element type of an input with the same type parameter, whatever their shape."""
        known = self.bound_types(found, node.input)
        result = {}
        for formal, name in zip(repeated(found.outputs, len(node.output)), node.output):
            text = known.get(formal.type_str, formal.type_str)
            if name and text.startswith("tensor("):
                element = onnx.TensorProto.DataType.Value(text[7:-1].upper())
                result[name] = onnx.helper.make_tensor_type_proto(element, None)
        return result

    def bound_types(self, found: Any, inputs: Iterable[str]) -> dict[str, str]:
        """Type parameter → type text ("T" → "tensor(float)") for the inputs of a node with this schema."""
        names = list(inputs)
        bound: dict[str, str] = {}
        for formal, name in zip(repeated(found.inputs, len(names)), names):
            text = type_text(self._types.get(name))
            if name and text:
                bound.setdefault(formal.type_str, text)
                bound.setdefault(formal.name, text)
        return bound


def _says(kind: onnx.TypeProto) -> int:
    """How much a type says of a shape: nothing, its rank, and how many of its dims are numbers."""
    if not kind.tensor_type.HasField("shape"):
        return 0
    return 1 + sum(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)


def repeated(formals: Any, count: int) -> list[Any]:
    """The formal parameter of each of `count` operands: a variadic last one serves all that follow."""
    listed = list(formals)
    return listed[:count] + listed[-1:] * (count - len(listed))


def type_text(kind: onnx.TypeProto | None) -> str | None:
    """ "tensor(float)", "seq(tensor(int64))", "optional(…)"; None where it is not known."""
    if kind is None:
        return None
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        element = kind.tensor_type.elem_type
        return f"tensor({onnx.TensorProto.DataType.Name(element).lower()})" if element else None
    if which in ("sequence_type", "optional_type"):
        inner = type_text(getattr(kind, which).elem_type)
        return f"{'seq' if which == 'sequence_type' else 'optional'}({inner})" if inner else None
    return None


def constant_of(node: onnx.NodeProto) -> np.ndarray | None:
    """The array that a Constant node holds; None for strings and sparse tensors."""
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute) if not attribute.ref_attr_name else None
        if attribute.name == "value" and value is not None:
            return onnx.numpy_helper.to_array(value)
        if attribute.name in ("value_int", "value_ints") and value is not None:
            return np.array(value, np.int64)
        if attribute.name in ("value_float", "value_floats") and value is not None:
            return np.array(value, np.float32)
    return None
