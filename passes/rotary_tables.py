"""Cosines and sines of rotary positions: how they meet what is turned, and one number for each pair."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .attention_steps import widened_dims
from .dims import Dim, rank_of, same_dim, same_dims
from .last_axis import joined, last_dim
from .matching import either_way, number
from .rewriter import Rewriter
from .rotary_steps import Rotation
from .view import constant

Make = Callable[[], ir.Value]
"""Writes the nodes that compute a value. Nothing is written before it is known that all of it can be."""


class Tables:
    """cos and sin of a rotation of x: [batch, heads, length, size] where `heads_first`, else positions before heads.

    values: cos and sin themselves. aligned: their dims where they meet x. makes: each writes one number for each of the
    `pairs`. fit: whether they are proved to be an angle for each position and pair; the rest means nothing otherwise.
    """

    def __init__(self, found: Rotation, dims: list[Dim], rw: Rewriter) -> None:
        self.values = (found.cos, found.sin)
        self.pairs = len(found.places) // 2
        width = 2 * self.pairs if found.doubled else self.pairs
        self.aligned = [_aligned(value, rw) for value in self.values]
        self.heads_first = all(_meets(each, dims, 2, width) for each in self.aligned)
        self.makes = [
            single(value, found.in_turn, found.last, rw) if found.doubled else _itself(value) for value in self.values
        ]
        meet = self.heads_first or all(_meets(each, dims, 1, width) for each in self.aligned)
        self.fit = meet and all(make is not None for make in self.makes)


def tables_of(found: Rotation, rule: str, rw: Rewriter) -> Tables | None:
    """cos and sin of a rotation of heads; None where they are no angles of positions, `rule` rejected with why."""
    shape, size = found.x.shape, last_dim(found.x)
    if shape is None or len(shape) != 4 or size is None or size % 2:
        rw.reject(rule, "x is not of four dims, the last of which is known and even")
        return None
    tables = Tables(found, list(shape), rw)
    if tables.fit:
        return tables
    rw.reject(rule, "cos and sin are not proved to be one angle for each position and pair")
    return None


def _aligned(value: ir.Value, rw: Rewriter) -> list[Dim] | None:
    """Its dims where it meets x, of four dims."""
    if value.shape is None or not 2 <= len(value.shape) <= 4:
        return None
    dims = widened_dims(value, rw)
    return [*[1] * (4 - len(dims)), *dims]


def _meets(dims: list[Dim] | None, x: list[Dim], positions: int, width: int) -> bool:
    """Whether there is a row for each position, for all heads, and for all of the batch or each of it."""
    if dims is None or dims[3] != width or dims[3 - positions] != 1:
        return False
    return same_dim(dims[positions], x[positions]) and (dims[0] == 1 or same_dim(dims[0], x[0]))


def _itself(value: ir.Value) -> Make:
    return lambda: value


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
        return next((x for x, by in either_way(node) if number(by) is not None and rank_of(x) == after), None)
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
