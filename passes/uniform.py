"""Tensors whose elements are all one known number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .rewriter import Rewriter
from .view import constant, constant_tensor

_LARGEST = 2**20
"""Bytes of a constant that are read to see whether its elements are equal; large weights are not."""
_DEEPEST = 8
"""Nodes in a row that are looked through."""
_MOVES = frozenset(
    ["Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"]
)


def value(operand: ir.Value | None, rw: Rewriter) -> np.ndarray | None:
    """The number (0-d array of the operand's type) that every element is; None when unknown or there are several.

    Knows constants, ConstantOfShape of any shape, and what repeats, selects or puts together elements of those.
    """
    return _value(operand, rw, {}, _DEEPEST)


def _value(
    operand: ir.Value | None, rw: Rewriter, known: dict[ir.Value | None, np.ndarray | None], deepest: int
) -> np.ndarray | None:
    """`known` has what was found before: a value may be put together many times, level by level."""
    node = operand.producer() if operand is not None else None
    if node is None or not rw.is_standard(node):
        return _of_constant(operand)
    if node.op_type == "ConstantOfShape":
        attr = node.attributes.get("value")
        if attr is not None and attr.is_ref():
            return None
        return np.zeros((), np.float32) if attr is None else attr.as_tensor().numpy().reshape(())
    if node.op_type not in _MOVES or not deepest:
        return _of_constant(operand)
    if operand not in known:
        first, *others = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        found = _value(first, rw, known, deepest - 1)
        is_one = found is not None and all(_is_same(found, _value(v, rw, known, deepest - 1)) for v in others)
        known[operand] = found if is_one else None
    return known[operand]


def _is_same(a: np.ndarray, b: np.ndarray | None) -> bool:
    """By bytes: NaN is one number, and -0.0 is not 0.0."""
    return b is not None and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _of_constant(operand: ir.Value | None) -> np.ndarray | None:
    tensor = constant_tensor(operand)
    if tensor is None or tensor.dtype == ir.DataType.STRING or not 0 < tensor.nbytes <= _LARGEST:
        return None
    array = constant(operand)
    assert array is not None
    flat = array.reshape(-1)
    # By bytes: NaN is one number, and -0.0 is not 0.0.
    if flat.size == 0 or flat.tobytes() != flat[:1].tobytes() * flat.size:
        return None
    return flat[0].reshape(()) if hasattr(flat[0], "reshape") else np.asarray(flat[0], flat.dtype)
