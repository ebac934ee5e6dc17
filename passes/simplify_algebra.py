"""simplify-algebra: chains of elementwise operators that come to the same with one of them less."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import same_dims, static_shape
from .dtypes import FLOATS
from .matching import either_way, only_reader
from .rewriter import Rewriter
from .rules import apply_rules, forward, rule, rules_in
from .view import RUNTIME, constant, constant_tensor

_INTEGERS = frozenset(
    {
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)
_FLOATS = {ir.DataType.FLOAT16: 1, ir.DataType.FLOAT: 2, ir.DataType.DOUBLE: 3}
"""Each holds what those before it hold."""
_SMALL = 64
"""Elements of a constant that may replace a node."""


@dataclasses.dataclass(frozen=True)
class SimplifyAlgebra:
    """Double negations, lossless Cast chains, nested Where, and constants in a row.

    before:  x ─ Neg ─ Neg ─ a   i ─ Cast(int64) ─ Cast(float) ─ b   n ─ Add 2 ─ Add 3 ─ d   m ─ Equal(·, true) ─ e
    after:   x ───────────── a   i ─ Cast(float) ─────────────── b   n ─ Add 5 ───────── d   m ────────────────── e

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
    inner, out = rw.producer(node.inputs[0], "Cast"), node.outputs[0]
    source, middle = (inner.inputs[0], inner.outputs[0].dtype) if inner is not None else (None, None)
    if inner is None or source is None or middle is None:
        return False
    # A truth is no number as text, and a float's shortest digits are not those of the double that it is.
    as_text = out.dtype == ir.DataType.STRING and source.dtype not in _INTEGERS
    if as_text or not _keeps(source.dtype, middle):
        return rw.reject("cast_of_cast", "the inner Cast does not keep every value")
    if source.dtype == out.dtype:
        return forward(node, rw, source, "cast_of_cast")
    rw.set_input(node, 0, source)
    return True


def _keeps(source: ir.DataType | None, target: ir.DataType) -> bool:
    """Whether a Cast to `target` keeps every value, and what further Casts make of it."""
    if source in _FLOATS and target in _FLOATS:
        return _FLOATS[source] < _FLOATS[target]
    if source == ir.DataType.BOOL:
        return target in _FLOATS or target in _INTEGERS
    if source in _INTEGERS and target in _INTEGERS:
        own, wide = (np.iinfo(each.numpy()) for each in (source, target))
        return wide.min <= own.min and own.max <= wide.max
    return False


@rule("Add", "Sub")
def plus_negative(node: ir.Node, rw: Rewriter) -> bool:
    """x + (−y) → x − y, and x − (−y) → x + y."""
    if (rw.opset(node) or 0) < 7:
        return False
    for kept, other in either_way(node):
        inner = rw.producer(other, "Neg")
        if inner is None:
            continue
        op_type = "Sub" if node.op_type == "Add" else "Add"
        rw.replace(node, rw.op(op_type, kept, inner.inputs[0], at=node).outputs[0])
        return True
    return False


@rule("Sub")
def minus_itself(node: ir.Node, rw: Rewriter) -> bool:
    """n − n → 0, for integers of known shape: where a slice starts that has as many positions as there are."""
    first, dims = node.inputs[0], static_shape(node.outputs[0])
    if first is None or first is not node.inputs[1] or first.dtype not in _INTEGERS:
        return False
    if dims is None or math.prod(dims) > _SMALL:
        return rw.reject("minus_itself", "the shape is not known, or large")
    assert first.dtype is not None
    zeros = np.zeros(dims, first.dtype.numpy())
    return forward(node, rw, rw.constant(zeros, f"{node.outputs[0].name}_zero", node), "minus_itself")


_OPPOSITE = {"Less": "GreaterOrEqual", "Greater": "LessOrEqual", "GreaterOrEqual": "Less", "LessOrEqual": "Greater"}


@rule("Not")
def not_of_comparison(node: ir.Node, rw: Rewriter) -> bool:
    """Not(a < b) → a ≥ b for integers of 32 and 64 bits; of floats, one that is no number is neither."""
    inner = node.inputs[0].producer() if node.inputs[0] is not None else None
    if inner is None or not rw.is_standard(inner) or inner.op_type not in _OPPOSITE or (rw.opset(node) or 0) < 12:
        return False
    if only_reader(inner.outputs[0]) is not node:
        return rw.reject("not_of_comparison", "the comparison is needed elsewhere")
    if inner.inputs[0] is None or inner.inputs[0].dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return rw.reject("not_of_comparison", "the operands may be no numbers")
    rw.replace(node, rw.op(_OPPOSITE[inner.op_type], *inner.inputs, at=node).outputs[0])
    return True


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
    if found is None or node.outputs[0].dtype not in FLOATS:
        return False
    value, first, second, inner = found
    sizes = abs(first), abs(second)
    with np.errstate(all="ignore"):
        scale = first * second
    if not (min(sizes) >= 1 or 0 < max(sizes) <= 1) or not np.finfo(scale.dtype).tiny <= abs(scale) < np.inf:
        return rw.reject("scales_in_a_row", "what overflows or vanishes in one form may not in the other")
    return _one_constant(node, inner, value, scale, rw)


@rule("Sum")
def sum_of_two(node: ir.Node, rw: Rewriter) -> bool:
    """Sum(x, y) → Add(x, y), but for what a norm reads: ort-norms keeps Sum there."""
    if len(node.inputs) != 2 or (rw.opset(node) or 0) < 8:
        return False
    if any(use.node.op_type == "LayerNormalization" for use in node.outputs[0].uses()):
        return False
    rw.replace(node, rw.op("Add", *node.inputs, at=node).outputs[0])
    return True


@rule("Cast")
def cast_of_fill(node: ir.Node, rw: Rewriter) -> bool:
    """Cast(ConstantOfShape(value)) → ConstantOfShape(the value cast), to types that numpy has."""
    fill, target = rw.producer(node.inputs[0], "ConstantOfShape"), node.outputs[0].dtype
    if fill is None or target not in {*_INTEGERS, *_FLOATS}:
        return False
    tensor = rw.view(fill).attr("value")
    number = np.zeros(1, np.float32) if tensor is None else tensor.numpy() if tensor is not RUNTIME else None
    if number is None or not np.all(np.abs(number.astype(np.float64)) < 2**7):  # in range of every type but unsigned
        return rw.reject("cast_of_fill", "the number may be out of the new type's range")
    if target in _INTEGERS and np.any(number < 0):
        return rw.reject("cast_of_fill", "a negative number, which an unsigned type has not")
    value = ir.tensor(number.astype(target.numpy()))
    new = rw.op("ConstantOfShape", fill.inputs[0], at=node, attributes=[ir.AttrTensor("value", value)])
    rw.replace(node, new.outputs[0])
    return True


@rule("Equal", "Xor")
def with_truth(node: ir.Node, rw: Rewriter) -> bool:
    """Equal(x, true), Xor(x, false) → x; Equal(x, false), Xor(x, true) → Not(x)."""
    if (rw.opset(node) or 0) < 7:
        return False
    for value, by in either_way(node):
        known = constant(by)
        if known is None or known.dtype != np.bool_ or known.size != 1:
            continue
        if known.ndim and not same_dims(value.shape, node.outputs[0].shape):
            rw.reject("with_truth", "the other operand is not proved to have the shape of the result")
            continue
        if bool(known.reshape(())) == (node.op_type == "Equal"):
            return forward(node, rw, value, "with_truth")
        rw.replace(node, rw.op("Not", value, at=node).outputs[0])
        return True
    return False


Found = tuple[ir.Value, np.ndarray, np.ndarray, ir.Node]


def _constant_in_a_row(node: ir.Node, rw: Rewriter) -> Found | None:
    """x, a, b and the inner node of (x ∘ a) ∘ b, with a and b of one element that does not widen x."""
    if (rw.opset(node) or 0) < 8:
        return None
    for chained, other in either_way(node):
        inner, second = rw.producer(chained, node.op_type), constant(other)
        if inner is None or second is None or second.size != 1:
            continue
        for value, by in either_way(inner):
            first = constant(by)
            if first is None or first.size != 1 or constant_tensor(value) is not None:
                continue
            if same_dims(value.shape, node.outputs[0].shape) or (first.ndim == 0 and second.ndim == 0):
                return value, first.reshape(()), second.reshape(()), inner
            rw.reject("constants in a row", "the operand is not proved to have the shape of the result")
    return None


def _one_constant(node: ir.Node, inner: ir.Node, value: ir.Value, number: np.ndarray, rw: Rewriter) -> bool:
    known = np.asarray(number, dtype=value.dtype.numpy() if value.dtype is not None else None).reshape(())
    operand = rw.constant(known, f"{node.outputs[0].name}_constant", node)
    rw.replace(node, rw.op(node.op_type, value, operand, at=node).outputs[0])
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
        rw.reject("where_of_where", "the inner operand is not proved to have the inner result's shape")
    return False


RULES = rules_in(globals())
