"""Rotary positions written out: pairs of numbers of a head turned by an angle for each position."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .last_axis import Piece, joined, last_dim, piece
from .matching import either_way, is_number, read_only_by
from .rewriter import Rewriter


@dataclasses.dataclass(frozen=True)
class Rotation:
    """`last` computes x with its first `places` turned: (a, b) → (a cos − b sin, b cos + a sin).

    Pairs are a number of the first half and one of the second, or neighbours (`in_turn`). `doubled`: cos and sin have
    as many numbers as are turned, each angle's at both places of its pair; else one for each pair. `turned`: the value
    that is turned as a whole, where there is one. `kept`: the numbers behind are handed on by `last`, too.
    """

    x: ir.Value
    places: range
    in_turn: bool
    doubled: bool
    cos: ir.Value
    sin: ir.Value
    turned: ir.Value | None
    kept: bool
    last: ir.Node


def of_sum(node: ir.Node, rw: Rewriter, rule: str) -> Rotation | None:
    """x · cos + t · sin, with t of every pair (a, b) the pair (−b, a)."""
    for plain, other in either_way(node):
        straight, product = rw.producer(plain, "Mul"), rw.producer(other, "Mul")
        if straight is None or product is None:
            continue
        for pair, sin in either_way(product):
            both = joined(pair.producer(), rw)
            if both is None or both.rest is not None:
                continue
            b, negation = _negated(both.first, rw)
            first, second = piece(both.second, rw), piece(b, rw)
            if first is None or second is None or negation is None:
                continue
            for turned, cos in either_way(straight):
                whole = piece(turned, rw)
                if whole is None or not _pairs(first, second, both.in_turn, whole):
                    continue
                nodes = [straight, product, *both.nodes, negation, *first.nodes, *second.nodes]
                if not _ours(nodes, [*whole.nodes], node):
                    rw.reject(rule, "a step is needed elsewhere")
                    return None
                last, kept = _with_rest(node, whole, rw)
                return Rotation(whole.whole, whole.places, both.in_turn, True, cos, sin, turned, kept, last)
    return None


def of_pairs(node: ir.Node, rw: Rewriter, rule: str) -> Rotation | None:
    """The numbers a cos − b sin and b cos + a sin, put together."""
    both = joined(node, rw)
    if both is None:
        return None
    difference, total = rw.producer(both.first, "Sub"), rw.producer(both.second, "Add")
    if difference is None or total is None:
        return None
    found = [rw.producer(value, "Mul") for value in (*difference.inputs, *total.inputs)]
    products = [each for each in found if each is not None]
    if len(products) != 4:
        return None
    ac, bs, *sums = products
    for a, cos in either_way(ac):
        for b, sin in either_way(bs):
            wanted = [{b, cos}, {a, sin}]
            if not any([set(one.inputs), set(other.inputs)] == wanted for one, other in (sums, sums[::-1])):
                continue
            first, second = piece(a, rw), piece(b, rw)
            if first is None or second is None or first.whole is not second.whole:
                continue
            places = _covered(first, second, both.in_turn)
            if places is None:
                continue
            nodes = [*both.nodes[1:], difference, total, ac, bs, *sums, *first.nodes, *second.nodes]
            if not _ours(nodes, [], node):
                rw.reject(rule, "a step is needed elsewhere")
                return None
            whole = Piece(first.whole, places)
            last, kept = _with_rest(node, whole, rw)
            if both.rest is not None:
                last, kept = node, _is_rest(both.rest, whole, rw)
                if not kept:
                    rw.reject(rule, "what is joined behind is not the rest of what is turned")
                    return None
            size = last_dim(first.whole)
            turned = first.whole if places == range(size or 0) else None
            return Rotation(first.whole, places, both.in_turn, False, cos, sin, turned, kept, last)
    return None


def _negated(value: ir.Value, rw: Rewriter) -> tuple[ir.Value | None, ir.Node | None]:
    """b of −b, and the node that negates."""
    negation, product = rw.producer(value, "Neg"), rw.producer(value, "Mul")
    if negation is not None:
        return negation.inputs[0], negation
    if product is not None:
        for b, by in either_way(product):
            if is_number(by, -1.0) and by.shape is not None and len(by.shape) == 0:
                return b, product
    return None, None


def _covered(first: Piece, second: Piece, in_turn: bool) -> range | None:
    """The places that both take together; None where they are not the halves, or neighbours, of a stretch."""
    a, b, half = first.places, second.places, len(first.places)
    if in_turn:
        fits = a.step == b.step == 2 and b.start == a.start + 1
    else:
        fits = a.step == b.step == 1 and b.start == a.start + half
    return range(a.start, a.start + 2 * half) if fits and half == len(b) else None


def _pairs(first: Piece, second: Piece, in_turn: bool, whole: Piece) -> bool:
    same = first.whole is whole.whole and second.whole is whole.whole
    return same and _covered(first, second, in_turn) == whole.places


def _ours(nodes: list[ir.Node], shared: list[ir.Node], last: ir.Node) -> bool:
    """Whether nobody else reads a step; what cuts pieces out may serve others."""
    cutting = {"Slice", "Split", "Gather"}
    own = [node for node in dict.fromkeys(nodes) if node.op_type not in cutting and node not in shared]
    own = [node for node in own if not _feeds_gathers(node)]
    return read_only_by([*own, last])


def _feeds_gathers(node: ir.Node) -> bool:
    """Whether it is the Reshape that sets pairs apart: it is no step, and stays where somebody else reads it."""
    return node.op_type == "Reshape" and {use.node.op_type for use in node.outputs[0].uses()} == {"Gather"}


def _with_rest(node: ir.Node, turned: Piece, rw: Rewriter) -> tuple[ir.Node, bool]:
    """The Concat that puts what is behind the turned numbers back there; else `node` itself."""
    out = node.outputs[0]
    readers = out.uses()
    size = last_dim(turned.whole)
    if len(readers) != 1 or out.is_graph_output() or size is None or turned.places.stop == size:
        return node, False
    (use,) = readers
    reader = use.node
    if reader.graph is not node.graph or reader.op_type != "Concat" or not rw.is_standard(reader):
        return node, False
    shape, axis = reader.outputs[0].shape, rw.view(reader).attr("axis")
    if len(reader.inputs) != 2 or reader.inputs[0] is not out or shape is None or axis not in (-1, len(shape) - 1):
        return node, False
    return (reader, True) if _is_rest(reader.inputs[1], turned, rw) else (node, False)


def _is_rest(value: ir.Value | None, turned: Piece, rw: Rewriter) -> bool:
    rest, size = piece(value, rw), last_dim(turned.whole)
    if rest is None or size is None or turned.places.start != 0:
        return False
    return rest.whole is turned.whole and rest.places == range(turned.places.stop, size)
