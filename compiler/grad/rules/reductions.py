"""Reductions, softmax, and averages over the spatial axes."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, Gradients, NotCovered, gradient_of
from pfvm.passes.view import RUNTIME

V = ir.Value


def _is_copy(n: ForwardNode) -> bool:
    """Whether the node reduces nothing: no axes, and told that this means none."""
    return bool(n.attr("noop_with_empty_axes", 0)) and n.view.ints("axes") in (None, ())


def _kept(b: Builder, n: ForwardNode, value: V) -> V:
    """The output, or its gradient, with the reduced axes as ones."""
    if n.attr("keepdims", 1):
        return value
    axes = n.view.ints("axes")
    if axes == () or axes is None:
        return value  # one number, which broadcasts to any rank
    operand = n.view.input("axes")
    if operand is None:
        raise NotCovered
    return b.op("Unsqueeze", value, b.ints(*axes) if axes is not RUNTIME else operand)


def _result(n: ForwardNode, gradient: V) -> Gradients:
    return [gradient, *[None] * (n.count - 1)]


@gradient_of("ReduceSum")
def _reduce_sum(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _result(n, dy if _is_copy(n) else b.expand(_kept(b, n, dy), n.x()))


@gradient_of("ReduceMean")
def _reduce_mean(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if _is_copy(n):
        return _result(n, dy)
    return _result(n, b.expand(b.div(_kept(b, n, dy), b.size_ratio(n.x(), n.y)), n.x()))


@gradient_of("ReduceMax", "ReduceMin")
def _reduce_extreme(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    """Equal elements share the gradient."""
    if _is_copy(n):
        return _result(n, dy)
    hit = b.cast(b.op("Equal", n.x(), _kept(b, n, n.y)), dy.dtype)
    axes = n.view.input("axes")
    count = b.op("ReduceSum", hit, axes, keepdims=1)
    return _result(n, b.mul(b.div(hit, count), _kept(b, n, dy)))


@gradient_of("ReduceL1")
def _reduce_l1(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _result(n, b.mul(b.op("Sign", n.x()), dy if _is_copy(n) else _kept(b, n, dy)))


@gradient_of("ReduceL2")
def _reduce_l2(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if _is_copy(n):
        raise NotCovered
    y = _kept(b, n, n.y)
    safe = b.where(b.op("Equal", y, b.like(0, y)), b.op("Add", y, b.like(1, y)), y)
    return _result(n, b.mul(b.div(n.x(), safe), _kept(b, n, dy)))


@gradient_of("ReduceSumSquare")
def _reduce_sum_square(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _result(n, b.mul(b.mul(n.x(), 2), dy if _is_copy(n) else _kept(b, n, dy)))


@gradient_of("ReduceLogSumExp")
def _reduce_log_sum_exp(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if _is_copy(n):
        return _result(n, dy)
    return _result(n, b.mul(b.op("Exp", b.sub(n.x(), _kept(b, n, n.y))), _kept(b, n, dy)))


@gradient_of("GlobalAveragePool")
def _global_average_pool(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.expand(b.div(dy, b.size_ratio(n.x(), n.y)), n.x())


@gradient_of("GlobalMaxPool")
def _global_max_pool(b: Builder, n: ForwardNode, dy: V) -> V:
    hit = b.cast(b.op("Equal", n.x(), n.y), dy.dtype)
    return b.mul(b.div(hit, b.sum(hit, range(2, b.rank(n.x())))), dy)


@gradient_of("Softmax")
def _softmax(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(b.sub(dy, b.sum(b.mul(dy, n.y), [n.attr("axis")])), n.y)


@gradient_of("LogSoftmax")
def _log_softmax(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.sub(dy, b.mul(b.op("Exp", n.y), b.sum(dy, [n.attr("axis")])))
