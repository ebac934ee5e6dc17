"""Reductions, softmax and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Emitter, axis, val

from .registry import register, rule

aten = torch.ops.aten
Node = torch.fx.Node


def _axes(e: Emitter, x: Node, dim: int | Sequence[int] | None) -> ir.Value | None:
    """The axes input; absent (all axes) for None and [], as in torch's sum and mean."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return None
    rank = val(x).dim()
    dims = [dim] if isinstance(dim, int) else dim
    return e.ints([axis(d, rank) for d in dims]) if rank else None


def _reduce(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> ir.Value:
        value = e.tensor(x, val(node).dtype)
        return e.op(op_type, value, _axes(e, x, dim), keepdims=int(keepdim))

    return apply


# A bool or integer sum is int64: the Cast shows.
register(_reduce("ReduceSum"), aten.sum, "default", "dim_IntList")
register(_reduce("ReduceMean"), aten.mean, "default", "dim")
register(_reduce("ReduceProd"), aten.prod, "default", "dim_int")
register(_reduce("ReduceMax"), aten.amax, "default")
register(_reduce("ReduceMin"), aten.amin, "default")


def _extreme(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node) -> ir.Value:
        return e.op(op_type, e.tensor(x), keepdims=0)

    return apply


register(_extreme("ReduceMax"), aten.max, "default")
register(_extreme("ReduceMin"), aten.min, "default")


def _extreme_with_index(reduce: str, arg: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, dim: int, keepdim: bool = False) -> list[ir.Value]:
        keep = int(keepdim)
        if val(x).dim() == 0:
            return [e.op("Identity", e.tensor(x)), e.scalar(0, torch.int64, "index")]
        values = e.op(reduce, e.tensor(x), _axes(e, x, dim), keepdims=keep)
        return [values, e.op(arg, e.tensor(x), axis=axis(dim, val(x).dim()), keepdims=keep)]

    return apply


register(_extreme_with_index("ReduceMax", "ArgMax"), aten.max, "dim")
register(_extreme_with_index("ReduceMin", "ArgMin"), aten.min, "dim")


def _arg(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, dim: int | None = None, keepdim: bool = False) -> ir.Value:
        value = e.tensor(x)
        if dim is not None and val(x).dim():
            return e.op(op_type, value, axis=axis(dim, val(x).dim()), keepdims=int(keepdim))
        flat = e.op("Reshape", value, e.ints([-1], "shape"))
        index = e.op(op_type, flat, axis=0, keepdims=0)
        return e.op("Reshape", index, e.ints([1] * val(node).dim(), "shape")) if val(node).dim() else index

    return apply


register(_arg("ArgMax"), aten.argmax, "default")
register(_arg("ArgMin"), aten.argmin, "default")


def _truth(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, dim: Any = None, keepdim: bool = False) -> ir.Value:
        """Over 0 and 1, because not every runtime reduces bools."""
        ones = e.cast(e.tensor(x, torch.bool), torch.int32)
        return e.cast(e.op(op_type, ones, _axes(e, x, dim), keepdims=int(keepdim)), val(node).dtype)

    return apply


register(_truth("ReduceMin"), aten.all, "default", "dim", "dims")
register(_truth("ReduceMax"), aten.any, "default", "dim", "dims")


def count(e: Emitter, x: Node, dims: Sequence[int]) -> int | None:
    """How many elements a reduction over `dims` takes; None when a size is symbolic."""
    total = 1
    for d in dims:
        size = val(x).shape[d]
        if not isinstance(size, int):
            return None
        total *= size
    return total


def variance(
    e: Emitter, node: Node, x: Node, dim: Any, correction: float | None, keepdim: bool
) -> tuple[ir.Value, ir.Value]:
    """(variance, mean) over `dim`; the mean keeps its dimensions."""
    dtype = val(x).dtype
    rank = val(x).dim()
    dims = (
        list(range(rank))
        if dim is None or dim == []
        else [axis(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    )
    n = count(e, x, dims)
    mean = e.op("ReduceMean", e.tensor(x), e.ints(dims), keepdims=1)
    centred = e.op("Sub", e.tensor(x), mean)
    squares = e.op("Mul", centred, centred)
    free = 1 if correction is None else correction
    if free == 0:
        return e.op("ReduceMean", squares, e.ints(dims), keepdims=int(keepdim)), mean
    total = e.op("ReduceSum", squares, e.ints(dims), keepdims=int(keepdim))
    if n is not None:
        divisor = e.scalar(max(n - free, 0), dtype)
    else:
        shape = e.op("Gather", e.op("Shape", e.tensor(x)), e.ints(dims, "indices"), axis=0)
        elements = e.cast(e.op("ReduceProd", shape, keepdims=0), dtype)
        divisor = e.op("Sub", elements, e.scalar(free, dtype))
    return e.op("Div", total, divisor), mean


@rule(aten.var.correction)
def var(e: Emitter, node: Node, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> ir.Value:
    return variance(e, node, x, dim, correction, keepdim)[0]


@rule(aten.std.correction)
def std(e: Emitter, node: Node, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> ir.Value:
    return e.op("Sqrt", variance(e, node, x, dim, correction, keepdim)[0])


@rule(aten.var_mean.correction)
def var_mean(
    e: Emitter, node: Node, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> list[ir.Value]:
    value, _ = variance(e, node, x, dim, correction, keepdim)
    return [value, e.op("ReduceMean", e.tensor(x), _axes(e, x, dim), keepdims=int(keepdim))]


@rule(aten.linalg_vector_norm.default)
def vector_norm(
    e: Emitter, node: Node, x: Node, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> ir.Value:
    dtype = val(node).dtype
    value, keep = e.tensor(x, dtype), int(keepdim)
    if order in (1, 2):
        return e.op(f"ReduceL{int(order)}", value, _axes(e, x, dim), keepdims=keep)
    magnitude = e.op("Abs", value)
    if order == float("inf"):
        return e.op("ReduceMax", magnitude, _axes(e, x, dim), keepdims=keep)
    if order == float("-inf"):
        return e.op("ReduceMin", magnitude, _axes(e, x, dim), keepdims=keep)
    if order == 0:
        hits = e.cast(e.op("Not", e.op("Equal", value, e.scalar(0, dtype))), dtype)
        return e.op("ReduceSum", hits, _axes(e, x, dim), keepdims=keep)
    total = e.op("ReduceSum", e.op("Pow", magnitude, e.scalar(order, dtype)), _axes(e, x, dim), keepdims=keep)
    return e.op("Pow", total, e.scalar(1 / order, dtype))


@rule(aten.logsumexp.default)
def logsumexp(e: Emitter, node: Node, x: Node, dim: Any, keepdim: bool = False) -> ir.Value:
    return e.op("ReduceLogSumExp", e.tensor(x, val(node).dtype), _axes(e, x, dim), keepdims=int(keepdim))


def _softmax(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, dim: int, half_to_float: bool = False) -> ir.Value:
        value = e.tensor(x, val(node).dtype)
        if val(x).dim() == 0:
            return e.op("Sub" if op_type == "LogSoftmax" else "Div", value, value)
        return e.op(op_type, value, axis=axis(dim, val(x).dim()))

    return apply


register(_softmax("Softmax"), aten._softmax, "default")
register(_softmax("Softmax"), aten._safe_softmax, "default")
register(_softmax("LogSoftmax"), aten._log_softmax, "default")


@rule(aten.cumsum.default)
def cumsum(e: Emitter, node: Node, x: Node, dim: int, **_: Any) -> ir.Value:
    value = e.tensor(x, val(node).dtype)
    if val(x).dim() == 0:
        return e.op("Identity", value)
    return e.op("CumSum", value, e.scalar(axis(dim, val(x).dim()), torch.int64, "axis"))
