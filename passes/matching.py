"""Asking about patterns of several nodes: numbers, operands in either order, products, and who else reads a step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from .dtypes import FLOATS
from .rewriter import Rewriter
from .view import constant, constant_tensor

Operands = Iterator[tuple[ir.Value, ir.Value]]


def number(value: ir.Value | None) -> float | None:
    """The constant of one element as a Python float; None for anything else."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype in (ir.DataType.STRING, ir.DataType.BOOL):
        return None
    return float(np.asarray(tensor.numpy(), np.float64).reshape(()))


def is_number(value: ir.Value | None, wanted: float) -> bool:
    """Whether the constant is `wanted` as exactly as its type can say it: one unit in the last place is allowed.

    What the type represents exactly must be met exactly.
    """
    found = number(value)
    if found is None or value is None:
        return False
    if value.dtype == ir.DataType.FLOAT and float(np.float32(wanted)) != wanted:
        return abs(found - wanted) <= float(np.spacing(np.float32(wanted)))
    if value.dtype == ir.DataType.DOUBLE and not wanted.is_integer():
        return abs(found - wanted) <= math.ulp(wanted)
    return found == wanted


_COMMUTES = frozenset({"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "Sum", "Xor"})


def either_way(node: ir.Node) -> Operands:
    """The operands of a binary operator: in both orders where it commutes, else in the one that they stand in."""
    if len(node.inputs) == 2 and node.inputs[0] is not None and node.inputs[1] is not None:
        yield node.inputs[0], node.inputs[1]
        if node.op_type in _COMMUTES:
            yield node.inputs[1], node.inputs[0]


def along(value: ir.Value | None, rank: int, axis: int, size: int) -> np.ndarray | None:
    """A constant operand, in double, of one number, or of one for each position of an axis; None for any other.

    It is read as broadcast beside an operand of `rank` dims with `size` positions along `axis`. Shape [1] or [size].
    """
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype not in FLOATS:
        return None
    dims = tensor.shape.numpy()
    padded = (1,) * (rank - len(dims)) + tuple(dims)
    if len(dims) > rank or any(dim != 1 for i, dim in enumerate(padded) if i != axis) or padded[axis] not in (1, size):
        return None
    return np.asarray(tensor.numpy(), np.float64).reshape(-1)


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads the value, in the same graph and as one operand; None when it is a graph output, too."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    (use,) = uses
    producer = value.producer()
    return use.node if producer is not None and use.node.graph is producer.graph else None


def read_only_by(nodes: Collection[ir.Node]) -> bool:
    """Whether nobody but `nodes` (the last of which is the root) reads what the nodes before the root compute."""
    *steps, root = nodes
    inside = {id(node) for node in nodes}
    return all(
        not out.is_graph_output() and all(id(use.node) in inside for use in out.uses())
        for node in steps
        for out in node.outputs
    ) and all(node.graph is root.graph for node in steps)


def statistics_as_affine(node: ir.Node, epsilon: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and shift by channel, in double, of a BatchNormalization in inference; None unless all is constant.

    They may not be finite: call under `np.errstate` and look at what they make of the weights.
    """
    arrays = [constant(value) for value in node.inputs[1:5]]
    if len(arrays) != 4 or any(array is None or array.ndim != 1 for array in arrays):
        return None
    scale, shift, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + epsilon)
    return factor, shift - mean * factor


def far_from_overflow(weights: np.ndarray) -> bool:
    """Whether sums of their products overflow only where those of scaled sums do: below the root of the largest."""
    return bool(np.all(np.abs(weights) < math.sqrt(np.finfo(weights.dtype).max)))


def keeps_rank(source: ir.Value, last: ir.Node, nodes: Collection[ir.Node]) -> bool:
    """Whether constants of one element leave the result of elementwise steps as many dims as `source` has.

    One of shape [1, 1, 1] may give it more. Where ranks are not known, only constants without dims are safe.
    """
    before, after = source.shape, last.outputs[0].shape
    if before is not None and after is not None:
        return len(before) == len(after)
    tensors = (constant_tensor(value) for node in (*nodes, last) for value in node.inputs)
    return all(tensor is None or tensor.size != 1 or len(tensor.shape) == 0 for tensor in tensors)


def factors(
    value: ir.Value, rw: Rewriter, nodes: list[ir.Node], stop: Collection[ir.Value] = (), depth: int = 3
) -> list[ir.Value]:
    """What is multiplied to make `value`: the operands of nested Mul, and the base of Pow(·, 2) and Pow(·, 3).

    The nodes that were looked through are appended to `nodes`; values in `stop` are factors, however computed.
    """
    node = value.producer()
    if depth == 0 or node is None or not rw.is_standard(node) or len(node.inputs) != 2 or value in stop:
        return [value]
    left, right = node.inputs
    if left is None or right is None:
        return [value]
    if node.op_type == "Mul":
        nodes.append(node)
        return [each for operand in (left, right) for each in factors(operand, rw, nodes, stop, depth - 1)]
    exponent = number(right) if node.op_type == "Pow" else None
    if exponent in (2.0, 3.0):
        nodes.append(node)
        return [left] * int(exponent)
    return [value]


def product_is(value: ir.Value, rw: Rewriter, wanted: list[ir.Value | float], nodes: list[ir.Node]) -> bool:
    """Whether `value` is the product of exactly these values and numbers, in any order; appends its nodes."""
    own: list[ir.Node] = []
    left = factors(value, rw, own, {each for each in wanted if isinstance(each, ir.Value)})
    for each in wanted:
        found = next((f for f in left if (f is each if isinstance(each, ir.Value) else is_number(f, each))), None)
        if found is None:
            return False
        left.remove(found)
    nodes.extend(own)
    return not left
