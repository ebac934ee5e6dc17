"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, Gradients, gradient_of

V = ir.Value


@gradient_of("MatMul")
def _matmul(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x, w = n.x(0), n.x(1)
    a, c = x, w
    if b.rank(w) == 1:
        c, dy = b.op("Unsqueeze", w, b.ints(-1)), b.op("Unsqueeze", dy, b.ints(-1))
    if b.rank(x) == 1:
        a, dy = b.op("Unsqueeze", x, b.ints(0)), b.op("Unsqueeze", dy, b.ints(-2))

    def left() -> V:
        da = b.op("MatMul", dy, b.swap_last(c))
        return b.reshape(da, x) if b.rank(x) == 1 and b.rank(da) == 2 else b.sum_to(_without(b, da, x, -2), x)

    def right() -> V:
        if b.rank(w) == 2 and b.rank(a) > 2:  # the batch is one more row axis: one product instead of a sum of many
            rows = b.op("Flatten", a, axis=b.rank(a) - 1)
            return b.op("Gemm", rows, b.op("Flatten", dy, axis=b.rank(dy) - 1), transA=1)
        dc = b.op("MatMul", b.swap_last(a), dy)
        return b.reshape(dc, w) if b.rank(w) == 1 and b.rank(dc) == 2 else b.sum_to(_without(b, dc, w, -1), w)

    return [left() if n.wants(0) else None, right() if n.wants(1) else None]


def _without(b: Builder, gradient: V, operand: V, axis: int) -> V:
    """Without the axis that was put in for a vector."""
    return b.op("Squeeze", gradient, b.ints(axis)) if b.rank(operand) == 1 else gradient


@gradient_of("Gemm")
def _gemm(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x, w = n.x(0), n.x(1)
    ta, tb, alpha = n.attr("transA"), n.attr("transB"), n.attr("alpha")

    def left() -> V:
        if ta:
            return b.op("Gemm", w, dy, transA=tb, transB=1, alpha=alpha)
        return b.op("Gemm", dy, w, transB=1 - tb, alpha=alpha)

    def right() -> V:
        if tb:
            return b.op("Gemm", dy, x, transA=1, transB=ta, alpha=alpha)
        return b.op("Gemm", x, dy, transA=1 - ta, alpha=alpha)

    parts: list[V | None] = [left() if n.wants(0) else None, right() if n.wants(1) else None]
    if n.count > 2:
        parts.append(b.sum_to(b.mul(dy, n.attr("beta")), n.x(2)) if n.wants(2) else None)
    return parts
