"""A node as a function from arrays to arrays: float64 for floats, int64 for integers (uint64 for those
of that type), bool; no layouts, no addresses.

The reference run and the emulator compute every node here, the emulator on what it loaded from its memories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.mngraph import is_move
from pfvm.errors import UnsupportedOpError, describe_node
from pfvm.passes.dims import static_shape

from .arithmetic import Arithmetic, wrapped
from .calls import Call, call_of
from .elementwise import ELEMENTWISE, clip
from .moving import MOVING
from .pools import POOLS, has_own_form, pool
from .products import Dtypes, conv, conv_transpose, gemm, matmul, transposes_plainly
from .reductions import REDUCTIONS, reduce
from .tail import plain, reference_kernel

Array = np.ndarray
Kernel = Callable[[Sequence[Array | None]], list[Array]]
Operand = TypeVar("Operand")

PRODUCTS = {"Gemm": gemm, "MatMul": matmul, "Conv": conv}
_SHAPED = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def kernel_of(call: Call, arithmetic: Arithmetic, dtypes: Dtypes) -> Kernel:
    """The node's function. dtypes: the device dtypes of its inputs, which products round in blocks.

    Raises UnsupportedOpError for an operator that neither pfvm nor onnx.reference has.
    """
    if is_move(call.node):
        return _move_kernel(call)
    if call.body is not None:
        return _body_kernel(call, call.body, arithmetic)
    if not call.is_onnx:
        raise UnsupportedOpError(f"{describe_node(call.node)}: the emulator knows no operator of its domain")
    own = _own_kernel(call, arithmetic, dtypes)
    return reference_kernel(call) if own is None else own


def is_elementwise(call: Call) -> bool:
    """Does every element of its outputs depend on one element of each (broadcast) input?"""
    if call.body is not None:
        opsets = call.body.opset_imports
        return all(
            n.op_type == "Constant" or is_elementwise(call_of(n, call.functions, opsets, call)) for n in call.body
        )
    return call.is_onnx and (call.op in ELEMENTWISE or call.op in ("Cast", "CastLike", "Clip"))


def _own_kernel(call: Call, arithmetic: Arithmetic, dtypes: Dtypes) -> Kernel | None:
    node = call.node
    if call.op in PRODUCTS:
        product = PRODUCTS[call.op]
        return _single(lambda inputs: product(call, arithmetic, dtypes, inputs))
    if call.op in REDUCTIONS:
        return _single(lambda inputs: reduce(call, arithmetic, inputs))
    if call.op == "ConvTranspose" and transposes_plainly(call):
        return _single(lambda inputs: conv_transpose(call, arithmetic, dtypes, inputs))
    if call.op in POOLS and has_own_form(call):
        return _single(lambda inputs: pool(call, inputs))
    if call.op in MOVING:
        moving = MOVING[call.op]
        return _single(lambda inputs: moving(call, inputs))
    if call.op in ELEMENTWISE:
        function = ELEMENTWISE[call.op](call.attribute)
        return _single(lambda inputs: function(*(given(x) for x in inputs)))
    if call.op == "Clip":
        bounded = clip(call.attribute("min"), call.attribute("max"), call.version >= 11)
        return _single(lambda inputs: bounded(*inputs))
    if call.op == "Cast":
        return _single(lambda inputs: converted(given(inputs[0]), ir.DataType(call.attribute("to"))))
    if call.op in _SHAPED and static_shape(node.outputs[0]) is not None:
        shape = static_shape(node.outputs[0])
        return _single(lambda inputs: given(inputs[0]).reshape(shape))
    if call.op == "Transpose":
        return _single(lambda inputs: np.transpose(given(inputs[0]), call.attribute("perm")))
    if call.op == "Constant" and call.attribute("value") is not None:
        value = plain(call.attribute("value"))
        return lambda inputs: [value]
    if call.op in ("Softmax", "LogSoftmax") and call.version >= 13:
        return _single(lambda inputs: softmax(call, arithmetic, given(inputs[0])))
    return None


def _move_kernel(call: Call) -> Kernel:
    """The elements as they are, or the slice of them."""
    axis, indices = call.attribute("axis"), call.attribute("indices")
    if indices is None:
        return lambda inputs: [given(inputs[0])]
    return lambda inputs: [np.take(np.concatenate([given(x) for x in inputs], axis), indices, axis)]


def softmax(call: Call, arithmetic: Arithmetic, x: Array) -> Array:
    """Softmax or LogSoftmax along an axis; the sum of exponentials is accumulated as every sum."""
    axis = call.attribute("axis", -1) % x.ndim
    moved = x - np.max(x, axis=axis, keepdims=True)
    exponentials = np.exp(moved)
    total = arithmetic.sum(exponentials, [axis])
    return moved - np.log(total) if call.op == "LogSoftmax" else exponentials / total


def converted(x: Array, to: ir.DataType) -> Array:
    """Cast: floats to integers towards zero."""
    if to == ir.DataType.BOOL:
        return x != 0
    if to.is_integer():
        return wrapped(x, to)
    if not to.is_floating_point():
        raise UnsupportedOpError(f"a device has no values of {to.name.lower()}")
    return x.astype(np.float64)


def _single(function: Callable[[Sequence[Array | None]], Array]) -> Kernel:
    def run(inputs: Sequence[Array | None]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [function(inputs)]

    return run


def given(operand: Operand | None) -> Operand:
    """An operand that the operator needs."""
    assert operand is not None
    return operand


def _body_kernel(call: Call, body: ir.Function, arithmetic: Arithmetic) -> Kernel:
    """A local function, node by node, in float64 between them: the device rounds what the node stores."""
    steps = []
    for node in body:
        inner = call_of(node, call.functions, body.opset_imports, call)
        steps.append((kernel_of(inner, arithmetic, [None] * len(node.inputs)), node))

    def run(inputs: Sequence[Array | None]) -> list[Array]:
        values: dict[ir.Value | None, Array | None] = {None: None}
        values.update(zip(body.inputs, [*inputs, *[None] * (len(body.inputs) - len(inputs))]))
        for kernel, node in steps:
            values.update(zip(node.outputs, kernel([values[value] for value in node.inputs])))
        return [given(values[value]) for value in body.outputs]

    return run
