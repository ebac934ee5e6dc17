"""fuse-cross-entropy-gradient: softmax less the one-hot labels, without the one-hot matrix."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from . import uniform
from .dims import same_dim, same_dims
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseCrossEntropyGradient:
    """The gradient of log-softmax and negative log-likelihood adds −w at each row's label to w · softmax.

    before:  0[N,C] ─ ScatterElements(t, −1) ─ Mul(·, w[N,1]) ─ m ─┬──────────────────────────┐
                                                                   └ ReduceSum ─ Mul(·, p) ─ Sub ─ g
    after:   p ─ Mul(·, w) ─ ScatterElements(t, −w, reduction=add) ─ g

    The same numbers to the last bit, NaN included: m has one number other than 0 in a row, so that its sum is −w. Where
    w is infinite, which it is not for a finite loss, a row that was all NaN now has infinities too. From opset 16 on.
    """

    name: ClassVar[str] = "fuse-cross-entropy-gradient"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Sub")
def softmax_less_labels(node: ir.Node, rw: Rewriter) -> bool:
    """Sub(m, Mul(p, ReduceSum(m))) with m = Mul(ScatterElements(0, t, −1), w) → ScatterElements(Mul(p, w), t, −w)."""
    rule = "softmax_less_labels"
    weighted, product = rw.producer(node.inputs[0], "Mul"), rw.producer(node.inputs[1], "Mul")
    if weighted is None or product is None:
        return False
    found = _sum_and_other(product, node.inputs[0], rw)
    if found is None:
        return False
    if (rw.opset(node) or 0) < 16:
        return rw.reject(rule, "before opset 16, ScatterElements cannot add")
    total, probabilities = found
    for hot, weight in (weighted.inputs, reversed(weighted.inputs)):
        scatter = rw.producer(hot, "ScatterElements")
        if scatter is not None and weight is not None:
            break
    else:
        return False
    axis = _labels_axis(scatter, weight, rw)
    if axis is None or axis != _reduced_axis(total, rw):
        return rw.reject(rule, "not one label of weight -1 for each row")
    if probabilities.dtype != weight.dtype or not same_dims(probabilities.shape, node.outputs[0].shape):
        return rw.reject(rule, "probabilities of another shape")
    if not (_inner(node.inputs[0], 2) and _inner(node.inputs[1], 1)):
        return rw.reject(rule, "a value in between is needed elsewhere")
    scaled = rw.op("Mul", probabilities, weight, at=node)
    minus = rw.op("Neg", weight, at=node)
    added = rw.op(
        "ScatterElements",
        *(scaled.outputs[0], scatter.inputs[1], minus.outputs[0]),
        at=node,
        axis=axis,
        reduction="add",
    )
    rw.replace(node, added.outputs[0])
    return True


def _inner(value: ir.Value | None, readers: int) -> bool:
    """Whether the value is read only by the pattern."""
    return value is not None and len(value.uses()) == readers and not value.is_graph_output()


def _sum_and_other(product: ir.Node, summed: ir.Value | None, rw: Rewriter) -> tuple[ir.Node, ir.Value] | None:
    """The ReduceSum of `summed` among the product's two operands, and the other operand."""
    for total, other in (product.inputs, reversed(product.inputs)):
        reduction = rw.producer(total, "ReduceSum")
        if reduction is not None and reduction.inputs[0] is summed and other is not None:
            return reduction, other
    return None


def _reduced_axis(total: ir.Node, rw: Rewriter) -> int | None:
    """The one axis that is summed, kept as a dim of 1; counted from 0."""
    view, source = rw.view(total), total.inputs[0]
    axes = view.ints("axes")
    if not isinstance(axes, tuple) or len(axes) != 1 or view.attr("keepdims") != 1:
        return None
    return axes[0] % len(source.shape) if source is not None and source.shape is not None else None


def _labels_axis(scatter: ir.Node, weight: ir.Value, rw: Rewriter) -> int | None:
    """The axis along which −1 is written into zeros at one index for each row, with a weight for each row."""
    data, indices, updates = scatter.inputs
    view = rw.view(scatter)
    axis = view.attr("axis")
    zero, one = uniform.value(data, rw), uniform.value(updates, rw)
    if zero is None or one is None or zero != 0 or one != -1 or view.attr("reduction") != "none":
        return None
    if data is None or indices is None or data.shape is None or not isinstance(axis, int) or indices.shape is None:
        return None
    axis %= len(data.shape)
    if not same_dims(indices.shape, weight.shape) or len(indices.shape) != len(data.shape):
        return None
    rows = all(
        same_dim(one, 1) if i == axis else same_dim(one, many)
        for i, (one, many) in enumerate(zip(indices.shape, data.shape))
    )
    return axis if rows else None


RULES = rules_in(globals())
