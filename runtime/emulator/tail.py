"""Operators of the long tail: onnx.reference, given float64, one evaluator a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from pfvm.errors import PfvmError, UnsupportedOpError, describe_node, one_line

from .calls import Call

Array = np.ndarray
Kernel = Callable[[Sequence[Array | None]], list[Array]]


class NodeFailedError(PfvmError):
    """A node whose operator refuses its values. Names the node."""


def reference_kernel(call: Call) -> Kernel:
    """The node by onnx.reference. Integers are given at their ONNX type. Raises UnsupportedOpError."""
    from onnx.reference import ReferenceEvaluator

    node = call.node
    if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
        raise UnsupportedOpError(
            f"{describe_node(node)}: a node with a body has no place in a plan; loops and branches are resolved before"
        )
    names = ["" if value is None else f"i{k}" for k, value in enumerate(node.inputs)]
    outputs = [f"o{k}" if value.name else "" for k, value in enumerate(node.outputs)]
    proto = onnx.helper.make_node(node.op_type, names, outputs, domain=node.domain)
    proto.attribute.extend(ir.serde.serialize_attribute(attr) for attr in call.attributes.values())
    try:
        evaluator = ReferenceEvaluator(proto, opsets={node.domain: call.version})
    except Exception as error:  # it raises whatever its parts do
        raise UnsupportedOpError(f"{describe_node(node)}: the emulator has no kernel: {one_line(error)}") from error
    narrow = [_narrow(value) for value in node.inputs]

    def run(inputs: Sequence[Array | None]) -> list[Array]:
        given = {
            name: value if dtype is None else value.astype(dtype)
            for name, value, dtype in zip(names, inputs, narrow)
            if value is not None
        }
        try:
            with np.errstate(all="ignore"):
                results = evaluator.run(None, given)
        except Exception as error:
            raise NodeFailedError(f"{describe_node(node)}: onnx.reference failed: {one_line(error)}") from error
        return [plain(result) for result in results]

    return run


def plain(value: object) -> Array:
    """Any numeric array as float64, int64, uint64 or bool."""
    array = np.asarray(value)
    if array.dtype in (np.bool_, np.uint64):
        return array
    if array.dtype.kind in "iu" or (array.dtype.kind == "V" and _is_extension_integer(array.dtype)):
        return array.astype(np.int64)
    if array.dtype.kind in "OUST":
        raise UnsupportedOpError(f"a tensor of {array.dtype} has no place on a device")
    return array.astype(np.float64)


def _is_extension_integer(dtype: np.dtype) -> bool:
    return dtype in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


def _narrow(value: ir.Value | None) -> np.dtype | None:
    """The integer type that an operator may look at (a zero point's, a quantized value's)."""
    if value is None or value.dtype is None or not value.dtype.is_integer() or value.dtype == ir.DataType.INT64:
        return None
    return np.dtype(value.dtype.numpy())
