"""Normalizations: by running statistics, and over the last axes."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, Gradients, NotCovered, gradient_of

V = ir.Value


@gradient_of("BatchNormalization")
def _batch_normalization(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    """By the running statistics, as in inference."""
    if n.attr("training_mode", 0) or n.wants(3) or n.wants(4):
        raise NotCovered
    x, rank = n.x(), b.rank(n.x())
    others = [0, *range(2, rank)]

    def column(value: V) -> V:
        return b.op("Reshape", value, b.ints(-1, *[1] * (rank - 2))) if rank > 2 else value

    inverse = b.op("Reciprocal", b.op("Sqrt", b.add(n.x(4), n.attr("epsilon"))))
    dx = ds = db = None
    if n.wants(0):
        dx = b.mul(dy, column(b.mul(b.cast(n.x(1), inverse.dtype), inverse)))
    if n.wants(1):
        ds = b.mul(b.sum(b.mul(dy, b.sub(x, column(n.x(3)))), others, keepdims=False), inverse)
    if n.wants(2):
        db = b.sum(dy, others, keepdims=False)
    return [dx, ds, db, None, None]


@gradient_of("LayerNormalization")
def _layer_normalization(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x = n.x()
    axes = range(n.attr("axis") % b.rank(x), b.rank(x))
    centred = b.sub(x, _mean(b, x, axes))
    inverse = b.op("Reciprocal", b.op("Sqrt", b.add(_mean(b, b.square(centred), axes), n.attr("epsilon"))))
    normal = b.mul(centred, inverse)
    dx = None
    if n.wants(0):
        scaled = b.mul(dy, n.x(1))
        inner = b.sub(b.sub(scaled, _mean(b, scaled, axes)), b.mul(normal, _mean(b, b.mul(scaled, normal), axes)))
        dx = b.mul(inner, inverse)
    ds = b.sum_to(b.mul(dy, normal), n.x(1)) if n.wants(1) else None
    return [dx, ds, b.sum_to(dy, n.x(2)) if n.wants(2) else None][: n.count]


def _mean(b: Builder, value: V, axes: range) -> V:
    return b.op("ReduceMean", value, b.ints(*axes), keepdims=1)
