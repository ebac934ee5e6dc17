"""What attention lays over its scores: masks and biases that are added, and choices of a number instead of a score."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .attention_steps import widened_dims
from .dims import Dim, longer, same_dim
from .matching import either_way, number
from .rewriter import Rewriter

_MOST = 4
"""Terms of one mask: causal, padding, position bias, window."""
_DEPTH = 8
_ABSORBING = 1e30
"""A number so low that adding a score to it is the number itself, in float, for scores up to 1e22."""


@dataclasses.dataclass(frozen=True)
class Term:
    """`value` is added to the scores; or, where there is a `fill`, `value` says where that stands for a score."""

    value: ir.Value
    fill: ir.Value | None = None
    kept: bool = True  # what `value` is where the score stays

    def over(self, total: ir.Value | None, at: ir.Node, rw: Rewriter) -> ir.Value:
        """What added to the scores has the effect of `total`, if there is one, and then of the term.

        A fill stands for what is added before it, too: on top of a mask as low it would be −∞.
        """
        if self.fill is None:
            return self.value if total is None else rw.op("Add", total, self.value, at=at).outputs[0]
        score = rw.constant(np.zeros((), np.float32), "no_mask", at) if total is None else total
        either = (score, self.fill) if self.kept else (self.fill, score)
        return rw.op("Where", self.value, *either, at=at).outputs[0]


def peel(scores: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> tuple[list[Term], ir.Value]:
    """What is laid over the product of queries and keys, the last first, and that product, perhaps scaled.

    Appends the nodes that lay it.
    """
    terms: list[Term] = []
    while len(terms) < _MOST:
        node = scores.producer()
        found = _term(node, rw) if node is not None and rw.is_standard(node) else None
        if node is None or found is None:
            break
        term, scores = found
        terms.append(term)
        nodes.append(node)
    return terms, scores


def _term(node: ir.Node, rw: Rewriter) -> tuple[Term, ir.Value] | None:
    if node.op_type == "Add":
        for inner, other in either_way(node):
            if _is_score(inner, rw, _DEPTH):
                return Term(other), inner
    if node.op_type == "Where":
        condition, yes, no = node.inputs
        for score, fill, kept in ((yes, no, True), (no, yes, False)):
            lowest = number(fill)
            if condition is None or score is None or lowest is None or not lowest <= -_ABSORBING:
                continue
            if _is_score(score, rw, _DEPTH):
                return Term(condition, fill, kept), score
    return None


def _is_score(value: ir.Value, rw: Rewriter, depth: int) -> bool:
    """Whether a value of four dims is a product of matrices, perhaps scaled and masked."""
    node = value.producer()
    if node is None or not rw.is_standard(node) or value.shape is None or len(value.shape) != 4 or not depth:
        return False
    if node.op_type == "MatMul":
        return True
    if node.op_type not in ("Mul", "Div", "Add", "Where"):
        return False
    return any(v is not None and _is_score(v, rw, depth - 1) for v in node.inputs)


def dims_of(terms: Sequence[Term], rw: Rewriter) -> list[Dim] | None:
    """The four dims of the terms' sum where it meets the scores; None where they are not proved to fit together."""
    dims: list[Dim] = [1, 1, 1, 1]
    for term in terms:
        if term.value.shape is None or len(term.value.shape) > 4:
            return None
        for i, dim in enumerate(reversed(widened_dims(term.value, rw)), 1):
            if dims[-i] == 1 or longer(dim, dims[-i]) is dim:
                dims[-i] = dim
            elif dim != 1 and not meet(dim, dims[-i]):
                return None
    return dims


def meet(a: Dim, b: Dim) -> bool:
    """Whether two dims, of which one does not widen to the other, are the same where they meet."""
    return same_dim(a, b) or longer(a, b) is not None


def sum_of(terms: Sequence[Term], at: ir.Node, rw: Rewriter) -> ir.Value:
    """One value of four dims for all terms; equal terms of other layers make equal nodes, which become one."""
    total: ir.Value | None = None
    for term in reversed(terms):
        total = term.over(total, at, rw)
    assert total is not None
    parts = [part for term in terms for part in (term.value, term.fill) if part is not None]
    rank = max(len(part.shape) for part in parts if part.shape is not None)
    return total if rank == 4 else rw.op("Unsqueeze", total, at=at, axes=np.arange(4 - rank)).outputs[0]


def repeated_rows(mask: ir.Value, dims: Sequence[Dim], query: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """The mask of one row for all queries, with a row for each. `query` has their number as its third dim."""
    assert query.shape is not None
    queries = query.shape[2]
    if isinstance(queries, int):
        shape = rw.constant(np.array([1, 1, queries, 1], np.int64), "mask_shape", at)
    else:  # self-attention has as many keys: that says it without the layer's own values
        source, axis = (mask, 3) if meet(dims[3], queries) else (query, 2)
        whole = rw.op("Shape", source, at=at).outputs[0]
        rows = rw.op("Slice", whole, at=at, starts=[axis], ends=[axis + 1], axes=[0]).outputs[0]
        ones = rw.constant(np.ones(2, np.int64), "mask_ones", at)
        one = rw.constant(np.ones(1, np.int64), "mask_one", at)
        shape = rw.op("Concat", ones, rows, one, at=at, axis=0).outputs[0]
    return rw.op("Expand", mask, shape, at=at).outputs[0]


def empty_rows(mask: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[batch, 1, queries, 1]: which queries see no key at all, for a mask of [batch, 1, queries, keys]."""
    largest = rw.op("ReduceMax", mask, at=at, axes=[3], keepdims=1).outputs[0]
    lowest = rw.constant(np.array(-np.inf, np.float32), "masked", at)
    return rw.op("Equal", largest, lowest, at=at).outputs[0]
