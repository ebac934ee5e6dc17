"""How a rule reads a node and writes others in its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from pfvm.passes import schema

from .scope import Scope, type_text

END = (1 << 63) - 1
"""As an end of a slice: whatever the size."""

Rule = Callable[["Node", "Builder"], Sequence[str] | str | None]
"""Writes nodes with the builder and returns the name of each output; None where it does not apply."""


class Node:
    """A node with its schema, and what is known about its operands."""

    def __init__(self, proto: onnx.NodeProto, scope: Scope) -> None:
        self.proto = proto
        self.scope = scope
        self.domain, self.op_type = proto.domain, proto.op_type
        self.opset = scope.imports.get(proto.domain, 0)
        self.schema: Any = schema.find(self.domain, self.op_type, self.opset)

    @property
    def since_version(self) -> int:
        """The opset from which the operator's schema dates; 0 for an operator that onnx does not know."""
        return self.schema.since_version if self.schema is not None else 0

    @property
    def types(self) -> dict[str, str]:
        """Type parameter → type text, inputs first, then outputs."""
        bound = self.scope.bound_types(self.schema, self.proto.input)
        for formal, name in zip(self.schema.outputs, self.proto.output):
            text = type_text(self.scope.type_of(name))
            if name and text:
                bound.setdefault(formal.type_str, text)
        return bound

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs; "" where an optional one is left out in between."""
        return list(self.proto.input)

    def has_input(self, index: int) -> bool:
        """Is the optional input given?"""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def input(self, index: int) -> str:
        """Name of an input, "" where it is left out."""
        return self.proto.input[index] if index < len(self.proto.input) else ""

    def dtype(self, index: int) -> int:
        """Element type of an input (TensorProto.FLOAT …); 0 where it is not known."""
        kind = self.scope.type_of(self.input(index))
        return kind.tensor_type.elem_type if kind is not None else 0

    def shape(self, index: int) -> list[int | None] | None:
        """Dims of an input, None for a dim or a rank that is not known."""
        kind = self.scope.type_of(self.input(index))
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]

    def rank(self, index: int) -> int | None:
        """Rank of an input, where it is known."""
        shape = self.shape(index)
        return None if shape is None else len(shape)

    def static_shape(self, index: int) -> list[int] | None:
        """The shape of an input where every dim is known."""
        shape = self.shape(index)
        return [d for d in shape if d is not None] if shape is not None and None not in shape else None

    def constant(self, index: int) -> np.ndarray | None:
        """The value of an input that is a small constant."""
        return self.scope.constant(self.input(index))

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute as a Python value (text decoded), the schema's default, or `default`."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        try:
            value = schema.attribute_default(self.domain, self.op_type, self.opset, name)
        except KeyError:
            value = None
        return default if value is None else value

    def has_attr(self, name: str) -> bool:
        """Is the attribute written down?"""
        return any(a.name == name for a in self.proto.attribute)

    def wants(self, index: int) -> bool:
        """Is this output used?"""
        return index < len(self.proto.output) and bool(self.proto.output[index])


class Builder:
    """Collects the nodes that replace one node. Fresh names carry the replaced node's own."""

    def __init__(self, origin: onnx.NodeProto, opset: int, counter: itertools.count) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.opset = opset  # of ai.onnx: what is written must be valid there
        self._origin = origin.name or next((o for o in origin.output if o), origin.op_type)
        self._counter = counter

    def fresh(self) -> str:
        """A value name that no model uses."""
        return f"__pfvm_{next(self._counter)}_{self._origin}"

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node of ai.onnx with one output; returns its name."""
        return self.ops(1, op_type, *inputs, **attributes)[0]

    def ops(self, outputs: int, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """A node with several outputs. Attributes that are None are left out."""
        names = [self.fresh() for _ in range(outputs)]
        given = {k: v for k, v in attributes.items() if v is not None}
        kept = list(inputs)
        while kept and not kept[-1]:
            kept.pop()
        name = f"{self._origin}/{op_type}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, kept, names, name=name, domain=domain, **given))
        return names

    def copy(self, node: Node, outputs: int | None = None, **changed: Any) -> list[str]:
        """The same node with other attributes (None removes one) and, where given, other inputs (`inputs=[…]`)."""
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        inputs = changed.pop("inputs", None)
        if inputs is not None:
            del proto.input[:]
            proto.input.extend(inputs)
        kept = [a for a in proto.attribute if a.name not in changed]
        kept += [onnx.helper.make_attribute(k, v) for k, v in changed.items() if v is not None]
        names = [self.fresh() if name else "" for name in proto.output[:outputs]]
        del proto.attribute[:], proto.output[:]
        proto.attribute.extend(kept)
        proto.output.extend(names)
        self.nodes.append(proto)
        return names

    def const(self, value: Any, dtype: Any = None) -> str:
        """A constant from an array, or from numbers and a numpy dtype."""
        array = np.asarray(value, dtype)
        return self.op("Constant", value=onnx.numpy_helper.from_array(array))

    def ints(self, *values: int) -> str:
        """A 1-d int64 constant: axes, shapes, pads."""
        return self.const(list(values), np.int64)

    def scalar(self, value: float, dtype: int) -> str:
        """A 0-d constant of an ONNX element type."""
        return self.const(value, onnx.helper.tensor_dtype_to_np_dtype(dtype))

    def cast(self, value: str, dtype: int) -> str:
        """The value in another element type."""
        return self.op("Cast", value, to=dtype)

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Unsqueeze in the form of the opset: axes were an attribute before 13."""
        return self._with_axes("Unsqueeze", value, axes)

    def squeeze(self, value: str, *axes: int) -> str:
        """Squeeze, likewise."""
        return self._with_axes("Squeeze", value, axes)

    def _with_axes(self, op_type: str, value: str, axes: Sequence[int]) -> str:
        if self.opset < 13:
            return self.op(op_type, value, axes=list(axes))
        return self.op(op_type, value, self.ints(*axes))

    def reduce(self, op_type: str, value: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """ReduceSum, ReduceMean, … over constant axes, in the form of the opset."""
        if self.opset < (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, value, axes=list(axes), keepdims=keepdims)
        return self.op(op_type, value, self.ints(*axes), keepdims=keepdims)

    def pad(self, value: str, begins: Sequence[int], ends: Sequence[int]) -> str:
        """Zeros (or, where negative, cuts) at the last len(begins) axes of a value whose rank is len(begins) + 2."""
        if not any((*begins, *ends)):
            return value
        pads = [0, 0, *begins, 0, 0, *ends]
        return self.op("Pad", value, pads=pads) if self.opset < 11 else self.op("Pad", value, self.ints(*pads))

    def slice(
        self, value: str, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]
    ) -> str:
        """Slice with constants; opset 10 or newer."""
        return self.op("Slice", value, *(self.ints(*each) for each in (starts, ends, axes, steps)))

    def dims(self, value: str, start: int, end: int = END) -> str:
        """Dims start to end of a value, as a 1-d int64 tensor."""
        return self.slice(self.op("Shape", value), [0], [start], [end], [1])


DOUBLE, FLOAT, FLOAT16, BFLOAT16 = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
