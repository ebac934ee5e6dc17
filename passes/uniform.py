"""Tensors whose elements are all one known number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .rewriter import Rewriter
from .view import constant, constant_tensor

_LARGEST = 2**20
"""Bytes of a constant that are read to see whether its elements are equal; large weights are not."""


def value(operand: ir.Value | None, rw: Rewriter) -> np.ndarray | None:
    """The number (0-d array of the operand's type) that every element is; None when unknown or there are several.

    Knows constants, ConstantOfShape of any shape, and Expand of either.
    """
    if operand is None:
        return None
    filled = rw.producer(operand, "ConstantOfShape")
    if filled is not None:
        attr = filled.attributes.get("value")
        if attr is not None and attr.is_ref():
            return None
        return np.zeros((), np.float32) if attr is None else attr.as_tensor().numpy().reshape(())
    expanded = rw.producer(operand, "Expand")
    return _of_constant(expanded.inputs[0] if expanded is not None else operand)


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
