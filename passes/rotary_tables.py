"""Cosines and sines of rotary positions: one number for each pair, of tables that hold each of them twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .dims import same_dims
from .last_axis import joined, last_dim
from .matching import either_way, number
from .rewriter import Rewriter
from .view import constant

Make = Callable[[], ir.Value]
"""Writes the nodes that compute a value. Nothing is written before it is known that all of it can be."""


_DEPTH = 32
"""Nodes that a table is followed through."""


def single(value: ir.Value, in_turn: bool, at: ir.Node, rw: Rewriter, depth: int = _DEPTH) -> Make | None:
    """The first of each two equal numbers along the last axis: halves, or neighbours (`in_turn`).

    None where they are not proved to be equal. A table is followed through what is done to each of its numbers and to
    its other axes, to a constant or to where the numbers are put side by side; that is done to half of them instead.
    """
    size = last_dim(value)
    if size is None or size % 2:
        return None
    known = constant(value)
    if known is not None:
        first, second = (known[..., 0::2], known[..., 1::2]) if in_turn else np.split(known, 2, axis=-1)
        if not np.array_equal(first, second):
            return None
        return lambda: rw.constant(np.ascontiguousarray(first), f"{value.name}_half", at)
    node = value.producer()
    if node is None or not rw.is_standard(node) or not depth:
        return None
    both = joined(node, rw)
    if both is not None and both.first is both.second and both.rest is None and both.in_turn == in_turn:
        return lambda: both.first
    if in_turn:
        repeated = _repeated(node, rw)
        if repeated is not None:
            return lambda: repeated
    operand = _followed(node, rw)
    inner = single(operand, in_turn, at, rw, depth - 1) if operand is not None else None
    if operand is None or inner is None:
        return None

    def make() -> ir.Value:
        operands = [inner() if each is operand else each for each in node.inputs]
        new = rw.op(node.op_type, *operands, at=at, attributes=node.attributes.values())
        return new.outputs[0]

    return make


def _followed(node: ir.Node, rw: Rewriter) -> ir.Value | None:
    """The operand whose last axis is that of the result, number by number."""
    source, view = node.inputs[0] if node.inputs else None, rw.view(node)
    if source is None or source.shape is None or node.outputs[0].shape is None:
        return None
    rank, after = len(source.shape), len(node.outputs[0].shape)
    if node.op_type in ("Cos", "Sin", "Cast", "Neg"):
        return source
    if node.op_type in ("Mul", "Add"):
        return next((x for x, by in either_way(node) if number(by) is not None and _rank(x) == after), None)
    if node.op_type == "Div":
        return source if number(node.inputs[1]) is not None and rank == after else None
    if node.op_type in ("Unsqueeze", "Squeeze"):
        axes, counted = view.ints("axes"), max(rank, after)
        return source if isinstance(axes, tuple) and all(axis % counted < counted - 1 for axis in axes) else None
    if node.op_type == "Slice":
        along = view.sliced_axes()
        return source if isinstance(along, tuple) and all(axis % rank < rank - 1 for axis in along) else None
    if node.op_type == "Gather":
        axis = view.attr("axis")
        return source if isinstance(axis, int) and axis % rank < rank - 1 else None
    if node.op_type == "Transpose":
        perm = view.attr("perm")
        return source if isinstance(perm, tuple) and perm[-1] == rank - 1 else None
    return None


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _repeated(node: ir.Node, rw: Rewriter) -> ir.Value | None:
    """x of Reshape(Expand(Unsqueeze(x, last), [..., 2])): each number twice."""
    expand = rw.producer(node.inputs[0], "Expand") if node.op_type == "Reshape" else None
    unsqueeze = rw.producer(expand.inputs[0], "Unsqueeze") if expand is not None else None
    if expand is None or unsqueeze is None:
        return None
    source, wide, shape = unsqueeze.inputs[0], expand.outputs[0].shape, node.outputs[0].shape
    size = last_dim(source)
    if source is None or source.shape is None or size is None or wide is None or shape is None:
        return None
    dims = list(source.shape)
    apart = same_dims(unsqueeze.outputs[0].shape, [*dims, 1]) and same_dims(wide, [*dims, 2])
    return source if apart and same_dims(shape, [*dims[:-1], 2 * size]) else None
