"""simplify-selection: Where, Gather and Scatter that are known to choose everything, nothing, or in order."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from . import uniform
from .dims import same_dims, static_shape
from .matching import either_way
from .rewriter import Rewriter
from .rules import apply_rules, forward, rule, rules_in
from .view import constant


@dataclasses.dataclass(frozen=True)
class SimplifySelection:
    """Remove a Where with a known condition or equal branches, and a Gather or ScatterND of every row in order.

    before:  m ─ Not ─ Where(·, a, b) ─ y     w[4,8] ─ Gather([0,1,2,3]) ─ z     0[4,8] ─ ScatterND([0..3], g, add) ─ d
    after:   m ─ Where(·, b, a) ─ y           w ────────────────────────── z     g ──────────────────────────────── d

    Every value is kept. (0 + g counts as g, as in eliminate-identity.)
    """

    name: ClassVar[str] = "simplify-selection"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def _forward(node: ir.Node, value: ir.Value | None, rw: Rewriter, rule: str) -> bool:
    """Let readers of the node read `value`, if it has the type and shape of the result."""
    out = node.outputs[0]
    if value is None or value.dtype is None or value.dtype != out.dtype or not same_dims(value.shape, out.shape):
        return rw.reject(rule, "what is chosen is not proved to have the type and shape of the result")
    return forward(node, rw, value, rule)


@rule("Where")
def where_not(node: ir.Node, rw: Rewriter) -> bool:
    """Where(Not(c), a, b) → Where(c, b, a)."""
    inverse = rw.producer(node.inputs[0], "Not")
    if inverse is None:
        return False
    swapped = rw.op("Where", inverse.inputs[0], node.inputs[2], node.inputs[1], at=node)
    rw.replace(node, swapped.outputs[0])
    return True


@rule("Where")
def where_decided(node: ir.Node, rw: Rewriter) -> bool:
    """Where with a condition that is true, or false, everywhere → that operand; Where(c, a, a) → a."""
    condition, yes, no = node.inputs
    if yes is no:
        return _forward(node, yes, rw, "where_decided")
    known = uniform.value(condition, rw)
    return known is not None and _forward(node, yes if known else no, rw, "where_decided")


_SIZES = frozenset({"Shape", "Size"})
_ONE_OF = frozenset({"Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Identity"})


@rule("Where")
def where_size_is_given(node: ir.Node, rw: Rewriter) -> bool:
    """Where(Equal(s, −1), given, s) of a Concat s of sizes and constants → s with `given` where the constants are −1.

    Exporters write it for a target of Expand, whose −1 keeps a dim. A size is never negative.
    """
    equal, sizes = rw.producer(node.inputs[0], "Equal"), node.inputs[2]
    concat = rw.producer(sizes, "Concat")
    if equal is None or concat is None or sizes is None or sizes.shape is None or len(sizes.shape) != 1:
        return False
    total, given = sizes.shape[0], constant(node.inputs[1])
    excluded = next((constant(by) for own, by in either_way(equal) if own is sizes), None)
    if excluded is None or given is None or not isinstance(total, int) or sizes.dtype != ir.DataType.INT64:
        return False
    if any(array.shape not in ((), (1,), (total,)) for array in (excluded, given)):
        return False
    excluded, given = np.broadcast_to(excluded, total), np.broadcast_to(given, total)
    parts, at = list[ir.Value | np.ndarray](), 0
    for part in concat.inputs:
        known, count = constant(part), static_shape(part) if part is not None else None
        if part is None or count is None:
            return rw.reject("where_size_is_given", "the number of a part is not known")
        here = slice(at, at + count[0])
        at += count[0]
        if known is not None:
            parts.append(np.where(known == excluded[here], given[here], known))
        elif bool((excluded[here] < 0).all()) and _is_size(part, rw):
            parts.append(part)
        else:
            return rw.reject("where_size_is_given", "a part is no size, or sizes are replaced")
    name = f"{node.outputs[0].name}_part"
    values = [rw.constant(part, name, node) if isinstance(part, np.ndarray) else part for part in parts]
    rw.replace(node, rw.op("Concat", *values, at=node, axis=0).outputs[0])
    return True


def _is_size(value: ir.Value, rw: Rewriter) -> bool:
    """Whether it is dims of a shape, picked and viewed."""
    node = value.producer()
    for _ in range(8):
        if node is None or not rw.is_standard(node):
            return False
        if node.op_type in _SIZES:
            return True
        if node.op_type not in _ONE_OF or node.inputs[0] is None:
            return False
        node = node.inputs[0].producer()
    return False


@rule("And")
def and_excluded(node: ir.Node, rw: Rewriter) -> bool:
    """And(Equal(t, numbers), Not(Equal(t, k))) → Equal(t, numbers), where k is none of the numbers.

    A one-hot matrix of labels is false at the ignored label as it is, unless that is the index of a class.
    """
    for hot, other in (node.inputs, node.inputs[::-1]):
        equal, inverse = rw.producer(hot, "Equal"), rw.producer(other, "Not")
        ignored = rw.producer(inverse.inputs[0], "Equal") if inverse is not None else None
        if equal is None or ignored is None or (rw.opset(node) or 0) < 7:
            continue
        for label, excluded in (ignored.inputs, ignored.inputs[::-1]):
            if label not in equal.inputs:
                continue
            numbers = constant(equal.inputs[1] if equal.inputs[0] is label else equal.inputs[0])
            known = uniform.value(excluded, rw)
            if (
                numbers is not None
                and known is not None
                and known not in numbers
                and _forward(node, hot, rw, "and_excluded")
            ):
                return True
    return False


def _all_rows(indices: ir.Value | None, rows: object) -> bool:
    """Whether the constant is 0, 1, … rows − 1."""
    known = constant(indices)
    if known is None or not isinstance(rows, int) or known.size != rows or rows == 0:
        return False
    return bool(np.array_equal(known.reshape(-1), np.arange(rows)))


@rule("Gather")
def gather_in_order(node: ir.Node, rw: Rewriter) -> bool:
    """Gather of every row in order → what is gathered from."""
    data = node.inputs[0]
    if data is None or data.shape is None or not data.shape:
        return False
    axis = rw.view(node).attr("axis")
    if not isinstance(axis, int) or not _all_rows(node.inputs[1], data.shape[axis]):
        return False
    return _forward(node, data, rw, "gather_in_order")


@rule("ScatterND")
def scatter_in_order(node: ir.Node, rw: Rewriter) -> bool:
    """ScatterND over every row in order → the updates; with reduction=add, onto zeros only."""
    data, indices, updates = node.inputs[:3]
    if data is None or data.shape is None or indices is None or indices.shape is None:
        return False
    if not data.shape or len(indices.shape) != 2 or indices.shape[1] != 1 or not _all_rows(indices, data.shape[0]):
        return False
    reduction = rw.view(node).attr("reduction") if (rw.opset(node) or 0) >= 16 else "none"
    known = uniform.value(data, rw)
    if reduction != "none" and not (reduction == "add" and known is not None and known == 0):
        return False
    return _forward(node, updates, rw, "scatter_in_order")


RULES = rules_in(globals())
