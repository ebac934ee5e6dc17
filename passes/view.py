"""Reading an operator: one accessor that knows each opset's defaults and forms.

The same parameter is an attribute at one opset and an input at another (axes of ReduceSum, starts of Slice, min of
Clip …). A rule asks `view.param("axes")` and need not know which.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from . import schema


class Runtime(enum.Enum):
    """`RUNTIME`: the parameter is there, but its value is only known when the model runs."""

    RUNTIME = enum.auto()


RUNTIME = Runtime.RUNTIME


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The value's content as a numpy array (ml_dtypes for the small floats), None when it can differ between runs.

    An initializer that is also a graph input is overridable, hence no constant: captured weights are such.
    """
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Like `constant`, without reading the data: for size, shape and dtype of big weights."""
    if value is None:
        return None
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or producer.domain != "":
        return None
    return _constant_node_tensor(producer)


def is_parameterized(node: ir.Node) -> bool:
    """Whether an attribute of the node is one of the enclosing function, which each call gives."""
    return any(attr.is_ref() for attr in node.attributes.values())


def renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The same content under another name; the tensor itself may be shared with other models."""
    if tensor.name == name:
        return tensor
    shape = ir.Shape(tensor.shape.numpy())
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.string_data(), shape=shape, name=name)
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name)


def _constant_node_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attr in node.attributes.items():
        if attr.is_ref():
            return None
        if name == "value":
            return attr.as_tensor()
        if name in ("value_float", "value_floats"):
            return ir.tensor(np.asarray(attr.value, np.float32))
        if name in ("value_int", "value_ints"):
            return ir.tensor(np.asarray(attr.value, np.int64))
        if name in ("value_string", "value_strings"):
            raw = [attr.value] if name == "value_string" else list(attr.value)
            data = [s.encode() if isinstance(s, str) else s for s in raw]
            return ir.StringTensor(data, shape=ir.Shape([] if name == "value_string" else [len(data)]))
    return None


_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
"""Before opset 13 their axis stands between two dims."""
_OTHERS = """ArgMax ArgMin Concat CumSum Gather GatherElements LpNormalization Pad ReduceL1 ReduceL2 ReduceLogSum
ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ScatterElements Slice Split Squeeze
TopK"""
_ALONG_FIRST = _FLATTENING | frozenset(_OTHERS.split())
"""Operators whose axis or axes are those of their first operand."""


class View:
    """A node seen through the schema of its scope's opset."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node = node
        self.opset = opset

    def attr(self, name: str) -> Any:
        """Attribute as a Python value (tuple for lists), the schema's default when absent, None without a default.

        RUNTIME for a reference to an attribute of the enclosing function, and for an axis that the operand has not,
        with which the model fails when it runs. KeyError when the operator has no such attribute at this opset.
        """
        attr = self.node.attributes.get(name)
        if attr is None:
            default = schema.attribute_default(self.node.domain, self.node.op_type, self.opset, name)
            found: Any = tuple(default) if isinstance(default, list) else default
        elif attr.is_ref():
            return RUNTIME
        else:
            found = tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value
        if name in ("transA", "transB"):
            return int(found != 0)  # as runtimes read them
        return found if name != "axis" or self._are_dims([found]) else RUNTIME

    def input(self, name: str) -> ir.Value | None:
        """The value at the formal input `name`; None when absent or when this opset has no such input."""
        index = schema.input_index(self.node.domain, self.node.op_type, self.opset, name)
        return None if index is None else self.at(index)

    def at(self, index: int) -> ir.Value | None:
        """The value at input position `index`; None when absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def param(self, name: str) -> Any:
        """A parameter that is an attribute or an input, by opset.

        Returns a numpy array (input form), a Python value (attribute form), None when absent without a default, or
        RUNTIME.
        """
        if schema.input_index(self.node.domain, self.node.op_type, self.opset, name) is None:
            return self.attr(name)
        value = self.input(name)
        if value is None:
            return None
        known = constant(value)
        return RUNTIME if known is None else known

    def ints(self, name: str) -> tuple[int, ...] | Runtime | None:
        """`param` as a tuple of Python ints, for axes, starts, pads and the like."""
        found = self.param(name)
        if found is None or found is RUNTIME:
            return found
        numbers = tuple(int(v) for v in np.asarray(found).reshape(-1))
        return numbers if name != "axes" or self._are_dims(numbers) else RUNTIME

    def sliced_axes(self) -> tuple[int, ...] | Runtime:
        """Which axes each of a Slice's starts is for: the first ones where it names none."""
        starts, axes = self.ints("starts"), self.ints("axes")
        if not isinstance(starts, tuple) or axes is RUNTIME:
            return RUNTIME
        along = axes if isinstance(axes, tuple) and axes else tuple(range(len(starts)))
        return along if len(along) == len(starts) and self._are_dims(along) else RUNTIME

    def is_dense_cut(self) -> bool:
        """Whether a Slice is known to leave nothing out between its bounds: its steps are 1."""
        steps = self.ints("steps") if self.opset >= 10 else None
        return steps is None or (isinstance(steps, tuple) and set(steps) <= {1})

    def cuts(self) -> list[tuple[int, int, int, int]] | None:
        """Axis, start, end and step of everything that a Slice cuts, as they are written; None where not all is known.

        None as well where there are not as many of each, which no runtime takes.
        """
        starts, ends, along = self.ints("starts"), self.ints("ends"), self.sliced_axes()
        steps = self.ints("steps") if self.opset >= 10 else None
        if not isinstance(starts, tuple) or not isinstance(ends, tuple) or along is RUNTIME or steps is RUNTIME:
            return None
        by = steps if isinstance(steps, tuple) else (1,) * len(starts)
        return list(zip(along, starts, ends, by)) if len(starts) == len(ends) == len(by) else None

    def _are_dims(self, axes: Sequence[int | None]) -> bool:
        """False where the operator's first operand is known not to have these axes."""
        source = self.at(0)
        if source is None or source.shape is None or self.node.op_type not in _ALONG_FIRST:
            return True
        rank = len(source.shape) + (self.opset < 13 and self.node.op_type in _FLATTENING)
        return all(axis is None or -rank <= axis < rank for axis in axes)

    def used_outputs(self) -> list[int]:
        """Positions of the outputs that somebody reads, graph outputs included."""
        return [i for i, out in enumerate(self.node.outputs) if out.uses() or out.is_graph_output()]
