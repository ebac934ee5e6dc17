"""Indices that a call gives are checked before it runs: XLA would clamp one that is out of range, silently.

This covers nodes of the main graph, which always run, and names the input that is wrong. `range_checks` has the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.errors import InputError, describe_node

# Operators (domain, name) whose second operand indexes one axis of the first.
_ALONG_AXIS = {
    ("", "Gather"),
    ("", "GatherElements"),
    ("", "Scatter"),
    ("", "ScatterElements"),
    ("ai.onnx.ml", "ArrayFeatureExtractor"),  # the last axis
}
_BY_COLUMN = {("", "GatherND"), ("", "ScatterND")}
# Operators that hand on every element of their first operand, in an order that does not matter here …
_MOVES = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile"}
# … or that keep the shape as well.
_KEEPS = {"Cast", "Identity", "DequantizeLinear", "QuantizeLinear", "Relu", "Neg", "Dropout"}
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT8}


@dataclasses.dataclass(frozen=True, eq=False)
class IndexCheck:
    """Every element of graph input `source` indexes axis `axis` of `data`; `column`: only that column does."""

    source: ir.Value
    node: ir.Node
    data: ir.Value
    axis: int
    column: int | None = None

    def __call__(self, given: Mapping[ir.Value, Any]) -> None:
        """Raises InputError where an index is out of range. Does nothing where the axis' size is not known here."""
        indices, shape = given.get(self.source), _shape(self.data, given)
        if indices is None or shape is None or not -len(shape) <= self.axis < len(shape):
            return
        array = np.asarray(indices)
        if self.column is not None and (array.ndim == 0 or self.column >= array.shape[-1]):
            return
        if self.column is not None:
            array = array[..., self.column]
        size = shape[self.axis]
        if array.size == 0 or (array.min() >= -size and array.max() < size):
            return
        wrong = next(int(i) for i in array.reshape(-1) if not -size <= i < size)
        raise InputError(
            f"input {self.source.name!r} holds the index {wrong}, out of range for axis {self.axis} of size {size} of "
            f"{self.data.name!r} in {describe_node(self.node)}: expected {-size} to {size - 1}"
        )


def index_checks(graph: ir.Graph) -> list[IndexCheck]:
    """The checks for the nodes of the main graph (those of bodies may not run)."""
    found = []
    for node in graph:
        key = (node.domain, node.op_type)
        if not (key in _ALONG_AXIS or key in _BY_COLUMN) or len(node.inputs) < 2 or node.inputs[0] is None:
            continue
        data = _same_shape(node.inputs[0])
        source = _origin(node.inputs[1], _MOVES if key in _ALONG_AXIS else {"Cast", "Identity"})
        if source is not None and key in _ALONG_AXIS:
            axis = node.attributes.get_int("axis", -1 if node.domain else 0)
            found.append(IndexCheck(source, node, data, axis))
        elif source is not None:
            found += _by_column(source, node, data)
    return found


def judged_nodes(checks: Iterable[IndexCheck]) -> frozenset[ir.Node]:
    """The nodes whose indices these checks judge in every call, since they know the size of what is indexed."""
    checks = list(checks)
    unsure = {c.node for c in checks if c.data.const_value is None and not c.data.is_graph_input()}
    return frozenset(c.node for c in checks if c.node not in unsure)


def _by_column(source: ir.Value, node: ir.Node, data: ir.Value) -> list[IndexCheck]:
    """The last axis of the indices holds an index for each axis of the data, from the batch axes on."""
    if source.shape is None or not source.shape or not isinstance(source.shape[-1], int):
        return []
    first = node.attributes.get_int("batch_dims", 0) if node.op_type == "GatherND" else 0
    return [IndexCheck(source, node, data, first + column, column) for column in range(source.shape[-1])]


def _origin(value: ir.Value | None, through: set[str]) -> ir.Value | None:
    """The graph input that holds the value's elements, or None."""
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or node.op_type not in through or value is not node.outputs[0]:
            return None
        value = node.inputs[0] if node.inputs else None
    is_input = value is not None and value.is_graph_input() and value.dtype in _INTEGERS
    return value if is_input else None


def _same_shape(value: ir.Value) -> ir.Value:
    """The earliest value with the same shape."""
    while (node := value.producer()) is not None and node.domain == "" and node.op_type in _KEEPS:
        if node.inputs[0] is None or value is not node.outputs[0]:
            break
        value = node.inputs[0]
    return value


def _shape(value: ir.Value, given: Mapping[ir.Value, Any]) -> tuple[int, ...] | None:
    if value in given:
        return np.shape(given[value])
    return None if value.const_value is None else tuple(value.const_value.shape)  # type: ignore[arg-type]
