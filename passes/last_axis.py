"""What is cut from the last axis of a value, and what is put together along it."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .dims import same_dims
from .rewriter import Rewriter
from .view import constant


@dataclasses.dataclass(frozen=True)
class Piece:
    """The numbers of `whole` at these places of its last axis; `nodes` cut them out."""

    whole: ir.Value
    places: range
    nodes: tuple[ir.Node, ...] = ()


_DEPTH = 32
"""Cuts of cuts that are followed."""


def piece(value: ir.Value | None, rw: Rewriter, depth: int = _DEPTH) -> Piece | None:
    """Where the value comes from by Slice, Split, or Gather of one of a pair; None where its last dim is not known."""
    size = last_dim(value)
    node = value.producer() if value is not None else None
    places = None
    if value is None or size is None:
        return _one_of_pairs(node, rw) if node is not None else None
    if node is not None and depth and rw.is_standard(node) and node.op_type in ("Slice", "Split"):
        places = _cut(node, value, rw)
    inner = piece(node.inputs[0], rw, depth - 1) if node is not None and places is not None else None
    if node is None or places is None or inner is None:
        pairs = _one_of_pairs(node, rw) if node is not None else None
        return pairs or Piece(value, range(size))
    return Piece(inner.whole, inner.places[places.start : places.stop : places.step], (node, *inner.nodes))


def last_dim(value: ir.Value | None) -> int | None:
    """The size of the last axis where it is known and not 0."""
    if value is None or value.shape is None or not len(value.shape):
        return None
    size = value.shape[len(value.shape) - 1]
    return size if isinstance(size, int) and size else None


def _cut(node: ir.Node, value: ir.Value, rw: Rewriter) -> range | None:
    """The places that one output of a Slice or Split takes, where it cuts the last axis alone."""
    source = node.inputs[0]
    size = last_dim(source)
    if source is None or source.shape is None or size is None:
        return None
    last = len(source.shape) - 1
    if node.op_type == "Slice":
        cuts = rw.view(node).cuts()
        if cuts is None or len(cuts) != 1 or cuts[0][0] not in (last, -1) or cuts[0][3] < 1:
            return None
        return range(size)[slice(*cuts[0][1:])]
    sizes = [last_dim(out) for out in node.outputs]
    if rw.view(node).attr("axis") not in (last, -1) or None in sizes:
        return None
    position = node.outputs.index(value)
    start = sum(each or 0 for each in sizes[:position])
    return range(start, start + (sizes[position] or 0))


def _one_of_pairs(node: ir.Node, rw: Rewriter) -> Piece | None:
    """Gather of the first or second number of Reshape(x) to [..., half, 2]."""
    if node.op_type != "Gather" or not rw.is_standard(node):
        return None
    pairs, index = node.inputs[0], constant(node.inputs[1])
    reshape = rw.producer(pairs, "Reshape")
    if reshape is None or index is None or index.shape != () or pairs is None or pairs.shape is None:
        return None
    source, dims = reshape.inputs[0], list(pairs.shape)
    size = last_dim(source)
    if size is None or source is None or rw.view(node).attr("axis") not in (len(dims) - 1, -1):
        return None
    if dims[-1] != 2 or dims[-2] != size // 2 or size % 2 or not same_dims(source.shape, [*dims[:-2], size]):
        return None
    if not -2 <= int(index) < 2:
        return None
    return Piece(source, range(int(index) % 2, size, 2), (node, reshape))


@dataclasses.dataclass(frozen=True)
class Joined:
    """Two values of equal size along the last axis, one behind the other or, `in_turn`, number by number.

    `rest`: what follows them. `nodes` put them together.
    """

    first: ir.Value
    second: ir.Value
    in_turn: bool
    rest: ir.Value | None
    nodes: tuple[ir.Node, ...]


def joined(node: ir.Node | None, rw: Rewriter) -> Joined | None:
    """The halves that a Concat, or the numbers that Reshape(Concat(Unsqueeze, Unsqueeze)), puts together."""
    if node is None or not rw.is_standard(node):
        return None
    if node.op_type == "Concat" and _is_last(node, rw) and 2 <= len(node.inputs) <= 3:
        first, second = node.inputs[:2]
        if first is None or second is None or last_dim(first) is None or last_dim(first) != last_dim(second):
            return None
        return Joined(first, second, False, node.inputs[2] if len(node.inputs) == 3 else None, (node,))
    concat = rw.producer(node.inputs[0], "Concat") if node.op_type == "Reshape" else None
    if concat is None or not _is_last(concat, rw) or len(concat.inputs) != 2:
        return None
    parts = [rw.producer(value, "Unsqueeze") for value in concat.inputs]
    values = [part.inputs[0] for part in parts if part is not None and _adds_last(part, rw)]
    shape, size = node.outputs[0].shape, last_dim(node.outputs[0])
    if len(values) != 2 or values[0] is None or values[1] is None or shape is None or size is None:
        return None
    if not all(same_dims(v.shape, [*list(shape)[:-1], size // 2]) for v in values if v is not None) or size % 2:
        return None
    return Joined(values[0], values[1], True, None, (node, concat, *(part for part in parts if part is not None)))


def _is_last(concat: ir.Node, rw: Rewriter) -> bool:
    shape = concat.outputs[0].shape
    return shape is not None and rw.view(concat).attr("axis") in (-1, len(shape) - 1)


def _adds_last(node: ir.Node, rw: Rewriter) -> bool:
    """Whether an Unsqueeze adds a last axis, and no other."""
    axes, shape = rw.view(node).ints("axes"), node.outputs[0].shape
    return axes == (-1,) or (shape is not None and axes == (len(shape) - 1,))
