"""Shapes that need no arithmetic of dims. The library computes with sympy to find them, whose import is a third of a
command's time on a small convolutional net, and many of those with an open batch need nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import onnx_shape_inference as osi
from pfvm.passes.dims import Dim, Dims, longer
from pfvm.passes.view import is_parameterized

_ARITHMETIC = frozenset(["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"])


def infer(context: osi.ShapeInferenceContext, node: ir.Node) -> bool:
    """Set the output's type and shape, which hold for every run; False for what is left to the library."""
    if node.domain != "" or not (node.op_type in _ARITHMETIC or node.op_type == "Flatten") or context.opset < 7:
        return False
    operands = [value for value in node.inputs if value is not None]
    shapes = [value.shape for value in operands if value.shape is not None]
    dtypes = {value.dtype for value in operands}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None or len(shapes) != len(node.inputs):
        return False
    dims = None
    if node.op_type == "Flatten":
        dims = None if is_parameterized(node) else _flattened(shapes[0], node.attributes.get_int("axis", 1))
    elif dtype.is_floating_point():  # what integers hold is followed, too, which is the library's
        dims = broadcast(context, shapes)
    if dims is None:
        return False
    context.set_dtype(node.outputs[0], dtype)
    node.outputs[0].shape = ir.Shape(dims)
    return True


def _flattened(shape: ir.Shape, axis: int) -> list[Dim] | None:
    if not -len(shape) <= axis <= len(shape):
        return None
    cut = axis + len(shape) if axis < 0 else axis
    sides = product(shape[:cut]), product(shape[cut:])
    return None if None in sides else [side for side in sides if side is not None]


def product(dims: Dims) -> Dim | None:
    """Of sizes, or of one symbol and ones; None where it is neither."""
    symbols = [dim for dim in dims if not isinstance(dim, int)]
    size = math.prod(dim for dim in dims if isinstance(dim, int))
    if not symbols:
        return size
    return symbols[0] if len(symbols) == 1 and size == 1 else None


def broadcast(context: osi.ShapeInferenceContext, shapes: Sequence[Dims | None]) -> list[Dim] | None:
    """Multidirectional broadcasting of symbolic shapes; None when one is unknown, or they do not fit.

    Of two different symbols either may be 1: together they are a new one.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max((len(shape) for shape in known), default=0)
    padded = [[*[1] * (rank - len(shape)), *shape] for shape in known]
    dims = [_broadcast_dim(context, column) for column in zip(*padded)]
    return None if None in dims else [dim for dim in dims if dim is not None]


def _broadcast_dim(context: osi.ShapeInferenceContext, dims: Sequence[Dim]) -> Dim | None:
    sizes = {dim for dim in dims if isinstance(dim, int) and dim != 1}
    if sizes:
        return sizes.pop() if len(sizes) == 1 else None
    symbols = {dim.value: dim for dim in dims if not isinstance(dim, int)}
    if not symbols:
        return 1
    first, *others = symbols.values()
    whole = longer(first, others[0]) if len(others) == 1 else None
    return first if not others else whole or context.new_symbolic_dim()
