"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .activation import is_attribute
from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


@rule(aten.mm.default, aten.bmm.default)
def mm(e: Emitter, node: Node, a: Arg, b: Arg) -> ir.Value:
    return e.op("MatMul", e.tensor(a), e.tensor(b))


@rule(aten.addmm.default)
def addmm(e: Emitter, node: Node, c: Arg, a: Arg, b: Arg, beta: float = 1, alpha: float = 1) -> ir.Value:
    dtype = val(node).dtype
    if dtype.is_floating_point and all(not isinstance(n, Node) and is_attribute(n, dtype) for n in (alpha, beta)):
        return e.op("Gemm", e.tensor(a), e.tensor(b), e.tensor(c), alpha=_unless_one(alpha), beta=_unless_one(beta))
    return baddbmm(e, node, c, a, b, beta, alpha)


def _unless_one(factor: float) -> float | None:
    return None if factor == 1 else float(factor)


@rule(aten.baddbmm.default)
def baddbmm(e: Emitter, node: Node, c: Arg, a: Arg, b: Arg, beta: float = 1, alpha: float = 1) -> ir.Value:
    dtype = val(node).dtype
    if dtype in (torch.bfloat16, torch.float16) and (isinstance(alpha, Node) or isinstance(beta, Node)):
        parts = [e.tensor(x, torch.float32) for x in (c, a, b)]
        product = e.op("Mul", e.op("MatMul", parts[1], parts[2]), e.tensor(alpha, torch.float32))
        total = e.op("Add", e.op("Mul", parts[0], e.tensor(beta, torch.float32)), product)
        return e.cast(total, dtype)  # rounded once, as torch's kernels do
    product = e.op("MatMul", e.tensor(a), e.tensor(b))
    if alpha != 1:
        product = e.op("Mul", product, e.tensor(alpha, dtype))
    added = e.tensor(c)
    if beta != 1:
        added = e.op("Mul", added, e.tensor(beta, dtype))
    return e.op("Add", added, product)


@rule(aten.addbmm.default)
def addbmm(e: Emitter, node: Node, c: Arg, a: Arg, b: Arg, *, beta: float = 1, alpha: float = 1) -> ir.Value:
    dtype = val(node).dtype
    product = e.op("ReduceSum", e.op("MatMul", e.tensor(a), e.tensor(b)), e.ints([0]), keepdims=0)
    if alpha != 1:
        product = e.op("Mul", product, e.scalar(alpha, dtype))
    added = e.tensor(c) if beta == 1 else e.op("Mul", e.tensor(c), e.scalar(beta, dtype))
    return e.op("Add", added, product)


@rule(aten.mv.default)
def mv(e: Emitter, node: Node, a: Arg, x: Arg) -> ir.Value:
    """Through a column: ONNX Runtime 1.32 mis-fuses Transpose + MatMul with a 1-D right side."""
    column = e.op("Unsqueeze", e.tensor(x), e.ints([1]))
    return e.op("Squeeze", e.op("MatMul", e.tensor(a), column), e.ints([1]))


@rule(aten.dot.default)
def dot(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    return e.op("ReduceSum", e.op("Mul", e.tensor(x), e.tensor(y)), e.ints([0]), keepdims=0)


@rule(aten._trilinear.default)
def trilinear(
    e: Emitter,
    node: Node,
    a: Arg,
    b: Arg,
    c: Arg,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> ir.Value:
    """Three tensors with new dimensions at the given places, multiplied and summed: what nn.Bilinear calls."""
    parts = [
        e.op("Unsqueeze", e.tensor(x), e.ints(list(dims))) if dims else e.tensor(x)
        for x, dims in ((a, expand1), (b, expand2), (c, expand3))
    ]
    product = e.op("Mul", e.op("Mul", parts[0], parts[1]), parts[2])
    return e.op("ReduceSum", product, e.ints(list(summed)), keepdims=0)
