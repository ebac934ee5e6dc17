"""float4e2m1, which ONNX Runtime has no kernel for: the sixteen values travel as their codes, in uint4.

The rules in rules/float4.py compute with codes; here a whole model changes over to them, its signature included.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto

from .functions import all_nodes, graphs_of
from .node import Node
from .scope import type_text

# In the order of the codes; the second half is the first with the sign bit set.
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TEXT = "tensor(float4e2m1)"
# Values are moved as they are, so that their codes may be moved instead.
_MOVES = (
    *("Concat", "Flatten", "Gather", "Identity", "Reshape", "Shape", "Size"),
    *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", "Constant", "If"),
)


def touches(node: Node) -> bool:
    """Does it read or write float4?"""
    names = [*node.proto.input, *node.proto.output]
    return any(type_text(node.scope.type_of(name)) == TEXT for name in names if name)


def moves_codes(node: Node) -> bool:
    """May it work on codes? Besides moves, the two casts that the rules write."""
    if node.domain:
        return False
    if node.op_type != "Cast":
        return node.op_type in _MOVES
    return node.attr("to") == TensorProto.INT32 or node.dtype(0) == TensorProto.UINT8


def to_codes(model: onnx.ModelProto) -> bool:
    """Renames float4 to uint4 throughout: types, tensors (packed alike) and casts. True where there was any."""
    changed = [_value(v) for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)]
    changed += [_tensor(t) for t in model.graph.initializer]
    changed += _nodes(model.graph.node)
    return any(changed)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> list[bool]:
    changed = []
    for node in all_nodes(nodes):
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT4E2M1:
                attribute.i = TensorProto.UINT4
                changed.append(True)
            if attribute.HasField("t"):
                changed.append(_tensor(attribute.t))
            for graph in graphs_of(attribute):
                changed += [_value(v) for v in (*graph.input, *graph.output, *graph.value_info)]
                changed += [_tensor(t) for t in graph.initializer]
    return changed


def _value(value: onnx.ValueInfoProto) -> bool:
    if value.type.tensor_type.elem_type != TensorProto.FLOAT4E2M1:
        return False
    value.type.tensor_type.elem_type = TensorProto.UINT4
    return True


def _tensor(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != TensorProto.FLOAT4E2M1:
        return False
    tensor.data_type = TensorProto.UINT4
    return True


def table() -> np.ndarray:
    """The value of each code, float32[16]."""
    half = np.array(MAGNITUDES, np.float32)
    return np.concatenate([half, -half])
