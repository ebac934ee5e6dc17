"""Losses that ATen keeps whole."""

from __future__ import annotations

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .registry import is_used, rule

aten = torch.ops.aten
Node = torch.fx.Node
_REDUCTION = ("none", "mean", "sum")


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    e: Emitter, node: Node, x: Node, target: Node, weight: Arg, reduction: int, ignore_index: int
) -> list[ir.Value | None]:
    total = _total_weight(e, x, target, weight, ignore_index) if is_used(node, 1) else None
    inputs = [e.tensor(x), e.tensor(target)]
    single = val(x).dim() == 1
    if single:  # one sample without a batch dimension
        inputs = [e.op("Unsqueeze", v, e.ints([0])) for v in inputs]
    if weight is not None:
        inputs.append(e.tensor(weight))
    loss = e.op("NegativeLogLikelihoodLoss", *inputs, reduction=_REDUCTION[reduction], ignore_index=ignore_index)
    return [e.op("Squeeze", loss, e.ints([0])) if single and reduction == 0 else loss, total]


def _total_weight(e: Emitter, x: Node, target: Node, weight: Arg, ignore_index: int) -> ir.Value:
    """The sum of the weights of all targets that count: what the mean divides by, read by the backward pass."""
    dtype = val(x).dtype
    counts = e.op("Not", e.op("Equal", e.tensor(target), e.scalar(ignore_index, torch.int64, "ignored")))
    if weight is None:
        return e.op("ReduceSum", e.cast(counts, dtype), keepdims=0)
    zero = e.scalar(0, torch.int64)
    weights = e.op("Gather", e.tensor(weight, dtype), e.op("Where", counts, e.tensor(target), zero), axis=0)
    return e.op("ReduceSum", e.op("Where", counts, weights, e.scalar(0, dtype)), keepdims=0)


@rule(aten.mse_loss.default)
def mse_loss(e: Emitter, node: Node, x: Node, target: Node, reduction: int = 1) -> ir.Value:
    dtype = val(node).dtype
    error = e.op("Sub", e.tensor(x, dtype), e.tensor(target, dtype))
    squares = e.op("Mul", error, error)
    return squares if reduction == 0 else e.op("ReduceMean" if reduction == 1 else "ReduceSum", squares, keepdims=0)
