"""Along which axes a node computes each position by itself, and where each operand has these positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
from pfvm.compiler.plan.mngraph import GATHERED
from pfvm.compiler.plan.ops import contract, reduce, reuse
from pfvm.compiler.plan.ops.table import dims, rank, rule_of


class Uncuttable(Exception):
    """The node computes across this axis."""


def operand_axes(node: ir.Node, axis: int) -> list[int | None]:
    """For every input the axis that an output's axis comes from; None for an input that every slice reads whole.

    Raises Uncuttable where one element of the output needs several of that axis.
    """
    kind = rule_of(node).kind
    if kind == "elementwise" or kind == "move":
        return [_broadcast_axis(node, value, axis) for value in node.inputs]
    if kind == "reduce":
        return [_reduced_axis(node, axis), *(None for _ in node.inputs[1:])]
    if kind == "contract" and GATHERED not in node.metadata_props and contract.is_local(node):
        return _product_axes(node, axis)
    if kind == "convolve" and axis == 0:
        return [0, *(None for _ in node.inputs[1:])]
    found = _MOVED[node.op_type](node, axis) if node.domain == "" and node.op_type in _MOVED else None
    if found is None:
        raise Uncuttable
    return [found.get(i) for i in range(len(node.inputs))]


def _broadcast_axis(node: ir.Node, value: ir.Value | None, axis: int) -> int | None:
    if value is None or value.shape is None:
        return None
    own = axis - (rank(node.outputs[0]) - rank(value))
    return own if own >= 0 and (value.shape[own] != 1 or node.outputs[0].shape[axis] == 1) else None  # type: ignore[index]


def _reduced_axis(node: ir.Node, axis: int) -> int:
    reduced = reduce.reduced_axes(node)
    if rank(node.outputs[0]) == rank(node.inputs[0]):
        if axis in reduced:
            raise Uncuttable
        return axis
    return [i for i in range(rank(node.inputs[0])) if i not in reduced][axis]


def _product_axes(node: ir.Node, axis: int) -> list[int | None]:
    last = rank(node.outputs[0]) - 1
    product = contract.product(node)
    if axis == last or (node.op_type == "Gemm" and product.data_column != 1):
        raise Uncuttable
    weight = next(
        (i for i, source in enumerate(product.weight_axes) if source == axis and i != product.weight_contracted), None
    )
    return [axis, weight, *(_broadcast_axis(node, value, axis) for value in node.inputs[2:])]


def viewed_axis(view: ir.Node, axis: int) -> int | None:
    """The axis of a view's operand that has the same positions as one of the view; None where they are regrouped."""
    perm = reuse.permutation(view)
    if perm is not None:
        return perm[axis]
    before, after = dims(view.inputs[0]), dims(view.outputs[0])
    lead = math.prod(after[:axis])
    found = [i for i, size in enumerate(before) if size == after[axis] and math.prod(before[:i]) == lead]
    return found[0] if found and after[axis] > 1 else None


# ---- nodes that collect operands from other cells: output axis → {input: its axis}, None where it computes across it


def _joined(node: ir.Node, axis: int) -> dict[int, int] | None:
    own = node.attributes.get_int("axis", 0) % rank(node.outputs[0])
    return None if axis == own else dict.fromkeys(range(len(node.inputs)), axis)


def _divided(node: ir.Node, axis: int) -> dict[int, int] | None:
    own = node.attributes.get_int("axis", 0) % rank(node.outputs[0])
    return None if axis == own else {0: axis}


def _picked(node: ir.Node, axis: int) -> dict[int, int] | None:
    """Gather: axes before the picked one, those of the indices, and those after."""
    own, picks = node.attributes.get_int("axis", 0) % rank(node.inputs[0]), rank(node.inputs[1])
    if axis < own:
        return {0: axis}
    return {1: axis - own} if axis < own + picks else {0: axis - picks + 1}


def _batch(node: ir.Node, axis: int) -> dict[int, int] | None:
    return {0: 0} if axis == 0 else None


def _pooled(node: ir.Node, axis: int) -> dict[int, int] | None:
    """Batch and channels; positions of maxima count over the whole tensor."""
    return {0: axis} if axis < 2 and len(node.outputs) == 1 else None


def _multiplied(node: ir.Node, axis: int) -> dict[int, int] | None:
    """A product of two matrices: rows of the first, columns of the second, or batches of both."""
    out = rank(node.outputs[0])
    if min(rank(node.inputs[0]), rank(node.inputs[1])) < 2:
        return None
    if axis == out - 1:
        return {1: rank(node.inputs[1]) - 1}
    if axis == out - 2:
        return {0: rank(node.inputs[0]) - 2}
    found = {i: _broadcast_axis(node, node.inputs[i], axis) for i in (0, 1)}
    return {i: own for i, own in found.items() if own is not None}


def _turned(node: ir.Node, axis: int) -> dict[int, int] | None:
    own = viewed_axis(node, axis)
    return None if own is None else {0: own}


_MOVED: dict[str, Callable[[ir.Node, int], dict[int, int] | None]] = {
    "Concat": _joined,
    "Split": _divided,
    "Gather": _picked,
    "Conv": _batch,
    "MaxPool": _pooled,
    "AveragePool": _pooled,
    "LpPool": _pooled,
    "MatMul": _multiplied,
    **dict.fromkeys(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _turned),
}
