"""A tensor plus a multiple of another, as optimizers compute them, in one walk over memory in the place of two."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir
from pfvm.passes.dims import same_dims, static_shape
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.view import constant_tensor
from pfvm.runtime.ort_expand.kernels import kernels_at

from .columns import reshape

# An operator of ONNX Runtime's own: X + Y · gate, one gate for each row; the product is rounded before it is added, as
# by Mul and Add. Measured, a step of SGD with momentum: 768×768 447 → 251 µs on two threads, 478 → 307 on one; 256×1024
# 256 → 166; but 64×64 44 → 85.
_DOMAIN, _OPERATOR = "com.microsoft", "GatedAdd"
_FEWEST_ELEMENTS = 1 << 16
_SHORTEST_ROW = 64
_MATRICES = "pfvm.matrices"
_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Sqrt", "Neg", "Max", "Min", "Abs", "Sign", "Pow", "Cast", "Where"}
)


def _as_matrix(node: ir.Node, rw: Rewriter) -> list[int] | None:
    """The shape as a matrix of a large parameter with short rows, as a convolution's, where nobody minds.

    Its new values leave the graph in that shape, for to give them their own is another walk over memory.
    `OrtExecutable` does that, see `own_shapes`. A body's results are carried on, and other readers would see the shape.
    """
    shape = static_shape(node.outputs[0])
    if shape is None or len(shape) < 3 or shape[-1] >= _SHORTEST_ROW or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    matrix = [shape[0], math.prod(shape[1:])]
    if matrix[1] < _SHORTEST_ROW or math.prod(shape) < _FEWEST_ELEMENTS:
        return None
    if any(static_shape(value) not in (shape, (), (1,)) for value in node.inputs if value is not None):
        return None
    results = rw.model.graph.outputs if node.graph is rw.model.graph else []
    tensors = [value for value in node.outputs if not _is_number(value)]
    is_free = all(static_shape(v) == shape and not v.uses() and results.count(v) == 1 for v in tensors)
    return matrix if is_free else None


def _is_large(value: ir.Value) -> bool:
    shape = static_shape(value)
    return (
        shape is not None
        and value.dtype == ir.DataType.FLOAT
        and len(shape) > 1
        and shape[-1] >= _SHORTEST_ROW
        and math.prod(shape) >= _FEWEST_ELEMENTS
    )


@functools.cache
def _has_kernel() -> bool:
    kernels = kernels_at(_DOMAIN, _OPERATOR, 1)
    return any(kernel.accepts({"T": "tensor(float)"}) for kernel in kernels)


def _is_number(value: ir.Value) -> bool:
    return static_shape(value) in ((), (1,))


def inline_update(node: ir.Node, rw: Rewriter) -> bool:
    """The call of an update of a large parameter becomes the operators of its function, for the rule below to see."""
    function = rw.model.functions.get(node.op_identifier())
    if function is None or function.attributes or not function.name.rstrip("0123456789").endswith("Update"):
        return False
    matrix = _as_matrix(node, rw)
    if not _has_kernel() or (matrix is None and not _is_large(node.outputs[0])):
        return False

    def viewed(value: ir.Value | None) -> ir.Value | None:
        return value if value is None or matrix is None or _is_number(value) else reshape(value, matrix, node, rw)

    values: dict[ir.Value | None, ir.Value | None] = {None: None}
    values.update(zip(function.inputs, map(viewed, node.inputs)))
    for inner in function:
        tensor = constant_tensor(inner.outputs[0])
        if tensor is not None:
            values[inner.outputs[0]] = rw.constant(tensor.numpy(), f"{node.outputs[0].name}_constant", node)
            continue
        inputs = [values[value] for value in inner.inputs]
        copy = rw.op(inner.op_type, *inputs, at=node, attributes=list(inner.attributes.values()))
        values[inner.outputs[0]] = _typed(copy)
    if matrix is not None:
        shape = tuple(static_shape(node.outputs[0]) or ())
        tensors = (value for value in node.outputs if value.is_graph_output() and not _is_number(value))
        rw.model.meta[_MATRICES] = own_shapes(rw.model) | {str(value.name): shape for value in tensors}
    rw.replace(node, *(values[value] for value in function.outputs))
    return True


def own_shapes(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """The shapes of the outputs that leave this model as matrices, by name."""
    found: dict[str, tuple[int, ...]] = model.meta.get(_MATRICES, {})
    return found


def _typed(node: ir.Node) -> ir.Value:
    """The result of an elementwise operator, with its type and shape where it is arithmetic of known operands."""
    out, shapes = node.outputs[0], [static_shape(value) for value in node.inputs if value is not None]
    like = node.inputs[1] if node.op_type == "Where" else node.inputs[0]
    if node.op_type in _ARITHMETIC and like is not None and None not in shapes:
        out.shape = ir.Shape(np.broadcast_shapes(*(shape for shape in shapes if shape is not None)))
        out.type = like.type
        if node.op_type == "Cast":
            out.type = ir.TensorType(ir.DataType(node.attributes["to"].as_int()))
    return out


def scaled_sum(node: ir.Node, rw: Rewriter) -> bool:
    """Add(x, Mul(y, s)) with a number s → GatedAdd(x, y, s for each row)."""
    if not _has_kernel():
        return False
    for other, scaled in (node.inputs, node.inputs[::-1]):
        mul = rw.producer(scaled, "Mul")
        if mul is None or scaled is None or other is None or len(scaled.uses()) != 1 or scaled.is_graph_output():
            continue  # the product is needed elsewhere
        for tensor, scale in (mul.inputs, mul.inputs[::-1]):
            if tensor is None or scale is None or not _is_number(scale):
                continue
            if not _is_large(tensor) or not same_dims(tensor.shape, other.shape):
                continue
            rows = [*(static_shape(tensor) or ())[:-1], 1]
            gate = rw.op("Expand", scale, at=node, shape=rows).outputs[0]
            assert node.graph is not None
            rw.root(node.graph).opset_imports.setdefault(_DOMAIN, 1)
            rw.replace(node, rw.op(_OPERATOR, other, tensor, gate, at=node, domain=_DOMAIN).outputs[0])
            return True
    return False
