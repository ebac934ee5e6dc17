"""simplify-algebra: chains of elementwise operators that come to the same with one of them less."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import same_dims
from .rewriter import Rewriter
from .rules import apply_rules, forward, rule, rules_in
from .view import RUNTIME, constant

_INTEGERS = frozenset(
    {
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)


@dataclasses.dataclass(frozen=True)
class SimplifyAlgebra:
    """Double negations, lossless Cast chains, bounds on bounds, nested Where, and constants in a row.

    before:  x ─ Neg ─ Neg ─ a   i ─ Cast(int64) ─ Cast(float) ─ b   x ─ Max 1 ─ Max 2 ─ c   n ─ Add 2 ─ Add 3 ─ d
    after:   x ───────────── a   i ─ Cast(float) ─────────────── b   x ─ Max 2 ───────── c   n ─ Add 5 ───────── d

    Only what is exact for every input, NaN and infinities included: constants in a row are added up in integers, which
    wrap the same way in any order. (x·a)·b is x·(a·b) in floating point as well, where it differs by one rounding:
    with a and b both of at least one, or both of at most one, so that nothing overflows or vanishes in one form alone.
    """

    name: ClassVar[str] = "simplify-algebra"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Neg", "Not", "BitwiseNot")
def undone(node: ir.Node, rw: Rewriter) -> bool:
    """Neg(Neg(x)), Not(Not(x)), BitwiseNot(BitwiseNot(x)) → x."""
    inner = rw.producer(node.inputs[0], node.op_type)
    return inner is not None and forward(node, rw, inner.inputs[0], "undone")


@rule("Abs", "Ceil", "Floor", "Relu", "Round", "Sign")
def done_before(node: ir.Node, rw: Rewriter) -> bool:
    """Abs(Abs(x)) → Abs(x), and likewise for other operators that do nothing the second time."""
    return rw.producer(node.inputs[0], node.op_type) is not None and forward(node, rw, node.inputs[0], "done_before")


@rule("Abs")
def abs_of_neg(node: ir.Node, rw: Rewriter) -> bool:
    """Abs(Neg(x)) → Abs(x)."""
    inner = rw.producer(node.inputs[0], "Neg")
    if inner is None:
        return False
    rw.set_input(node, 0, inner.inputs[0])
    return True


@rule("And", "Or", "Min", "Max")
def of_itself(node: ir.Node, rw: Rewriter) -> bool:
    """And(x, x), Or(x, x), Min(x, x), Max(x, x) → x."""
    if len(node.inputs) != 2 or node.inputs[0] is not node.inputs[1]:
        return False
    return forward(node, rw, node.inputs[0], "of_itself")


@rule("Cast")
def cast_of_cast(node: ir.Node, rw: Rewriter) -> bool:
    """Cast(Cast(x)) → Cast(x), where the inner one keeps every value of x's type."""
    inner = rw.producer(node.inputs[0], "Cast")
    source, middle = (inner.inputs[0], inner.outputs[0].dtype) if inner is not None else (None, None)
    if inner is None or source is None or middle is None or not _keeps(source.dtype, middle):
        return False
    if source.dtype == node.outputs[0].dtype:
        return forward(node, rw, source, "cast_of_cast")
    rw.set_input(node, 0, source)
    return True


def _keeps(source: ir.DataType | None, target: ir.DataType) -> bool:
    """Whether a Cast to `target` keeps every value, and what further Casts make of it."""
    floats = {ir.DataType.FLOAT16: 1, ir.DataType.FLOAT: 2, ir.DataType.DOUBLE: 3}
    if source in floats and target in floats:
        return floats[source] < floats[target]
    if source in _INTEGERS and target in _INTEGERS:
        own, wide = (np.iinfo(each.numpy()) for each in (source, target))
        return wide.min <= own.min and own.max <= wide.max
    return False


@rule("Min", "Max")
def bound_of_bound(node: ir.Node, rw: Rewriter) -> bool:
    """Min(Min(x, a), b) → Min(x, min(a, b)) for constants of one element, and Max likewise."""
    found = _constant_in_a_row(node, rw)
    if found is None:
        return False
    value, first, second, inner = found
    if not all(np.all(np.isfinite(each)) for each in (first.astype(np.float64), second.astype(np.float64))):
        return False
    chosen = np.minimum(first, second) if node.op_type == "Min" else np.maximum(first, second)
    return _one_constant(node, inner, value, chosen, rw)


@rule("Add", "Sub")
def plus_negative(node: ir.Node, rw: Rewriter) -> bool:
    """x + (−y) → x − y, and x − (−y) → x + y."""
    if (rw.opset(node) or 0) < 7:
        return False
    for kept, other in ((0, 1), (1, 0)) if node.op_type == "Add" else ((0, 1),):
        inner = rw.producer(node.inputs[other], "Neg")
        if inner is None or inner.inputs[0] is None:
            continue
        op_type = "Sub" if node.op_type == "Add" else "Add"
        rw.replace(node, rw.op(op_type, node.inputs[kept], inner.inputs[0], at=node).outputs[0])
        return True
    return False


@rule("Add", "Mul")
def constants_in_a_row(node: ir.Node, rw: Rewriter) -> bool:
    """(n + a) + b → n + (a + b) and (n · a) · b → n · (a · b) in integers."""
    found = _constant_in_a_row(node, rw)
    if found is None or node.outputs[0].dtype not in _INTEGERS:
        return False
    value, first, second, inner = found
    with np.errstate(all="ignore"):
        return _one_constant(node, inner, value, first + second if node.op_type == "Add" else first * second, rw)


@rule("Mul")
def scales_in_a_row(node: ir.Node, rw: Rewriter) -> bool:
    """(x · a) · b → x · (a · b) in float and double."""
    found = _constant_in_a_row(node, rw)
    if found is None or node.outputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False
    value, first, second, inner = found
    sizes = abs(first), abs(second)
    with np.errstate(all="ignore"):
        scale = first * second
    if not (min(sizes) >= 1 or 0 < max(sizes) <= 1) or not np.finfo(scale.dtype).tiny <= abs(scale) < np.inf:
        return rw.reject("scales_in_a_row", "what overflows or vanishes in one form may not in the other")
    return _one_constant(node, inner, value, scale, rw)


Found = tuple[ir.Value, np.ndarray, np.ndarray, ir.Node]


def _constant_in_a_row(node: ir.Node, rw: Rewriter) -> Found | None:
    """x, a, b and the inner node of (x ∘ a) ∘ b, with a and b of one element that does not widen x."""
    if len(node.inputs) != 2 or (rw.opset(node) or 0) < 8:
        return None
    for chained, other in (node.inputs, node.inputs[::-1]):
        inner, second = rw.producer(chained, node.op_type), constant(other)
        if inner is None or second is None or second.size != 1 or len(inner.inputs) != 2:
            continue
        for value, by in (inner.inputs, inner.inputs[::-1]):
            first = constant(by)
            if value is None or first is None or first.size != 1 or constant(value) is not None:
                continue
            if same_dims(value.shape, node.outputs[0].shape) or (first.ndim == 0 and second.ndim == 0):
                return value, first.reshape(()), second.reshape(()), inner
    return None


def _one_constant(node: ir.Node, inner: ir.Node, value: ir.Value, number: np.ndarray, rw: Rewriter) -> bool:
    known = np.asarray(number, dtype=value.dtype.numpy() if value.dtype is not None else None).reshape(())
    operand = rw.constant(known, f"{node.outputs[0].name}_constant", node)
    rw.replace(node, rw.op(node.op_type, value, operand, at=node).outputs[0])
    return True


@rule("Clip")
def clip_of_clip(node: ir.Node, rw: Rewriter) -> bool:
    """Clip(Clip(x, a, b), c, d) → Clip(x, …) for constant bounds in order."""
    inner = rw.producer(node.inputs[0], "Clip")
    if inner is None or inner.inputs[0] is None or (rw.opset(node) or 0) < 11:
        return False
    bounds = [rw.view(each).param(name) for each in (inner, node) for name in ("min", "max")]
    if any(bound is None or bound is RUNTIME or np.isnan(np.asarray(bound, np.float64)).any() for bound in bounds):
        return False
    a, b, c, d = (np.asarray(bound).reshape(()) for bound in bounds)
    if a > b or c > d:
        return False
    low, high = (np.minimum(np.maximum(bound, c), d).astype(a.dtype) for bound in (a, b))
    rw.replace(node, rw.op("Clip", inner.inputs[0], at=node, min=low, max=high).outputs[0])
    return True


@rule("Where")
def where_of_where(node: ir.Node, rw: Rewriter) -> bool:
    """Where(c, Where(c, a, _), b) → Where(c, a, b), and likewise in the other branch."""
    for index in (1, 2):
        inner = rw.producer(node.inputs[index], "Where")
        if inner is None or inner.inputs[0] is not node.inputs[0]:
            continue
        chosen = inner.inputs[index]
        if chosen is not None and same_dims(chosen.shape, inner.outputs[0].shape):
            rw.set_input(node, index, chosen)
            return True
    return False


RULES = rules_in(globals())
