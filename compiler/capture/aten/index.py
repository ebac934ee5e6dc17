"""Reading by index tensors, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, axis, dtype_of, sizes, val

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


@rule(aten.index_select.default)
def index_select(e: Emitter, node: Node, x: Arg, dim: int, indices: Arg) -> ir.Value:
    if val(x).dim() == 0:
        return e.op("Identity", e.tensor(x))
    chosen = e.tensor(indices) if val(indices).dim() else e.op("Unsqueeze", e.tensor(indices), e.ints([0]))
    return e.op("Gather", e.tensor(x), chosen, axis=axis(dim, val(x).dim()))


@rule(aten.gather.default)
def gather(e: Emitter, node: Node, x: Arg, dim: int, indices: Arg, sparse_grad: bool = False) -> ir.Value:
    if val(x).dim() == 0:
        return e.op("Identity", e.tensor(x))
    return e.op("GatherElements", e.tensor(x), e.tensor(indices), axis=axis(dim, val(x).dim()))


@rule(aten.index.Tensor)
def index(e: Emitter, node: Node, x: Arg, indices: Sequence[Node | None]) -> ir.Value:
    """x[i, j]: one index tensor is a Gather; several are a GatherND over the indexed dimensions moved to the front."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    chosen = [i for i in indices if i is not None]
    if any(dtype_of(i) in (torch.bool, torch.uint8) for i in chosen):
        raise e.refuse("a boolean mask gives a shape that depends on the data; use torch.where(mask, x, 0)", node)
    if len(dims) == 1:
        return e.op("Gather", e.tensor(x), e.tensor(chosen[0]), axis=dims[0])
    value, rest = to_front(e, e.tensor(x), val(x).dim(), dims)
    gathered = e.op("GatherND", value, stacked_indices(e, chosen))
    index_rank = max(val(i).dim() for i in chosen)
    if dims[0] == 0 or dims != list(range(dims[0], dims[-1] + 1)):
        return gathered  # torch puts the indexed dimensions first, too
    before = dims[0]  # they stay where they were: move the leading rest back in front
    total = index_rank + len(rest)
    perm = [*range(index_rank, index_rank + before), *range(index_rank), *range(index_rank + before, total)]
    return e.op("Transpose", gathered, perm=perm)


def to_front(e: Emitter, value: ir.Value, rank: int, dims: Sequence[int]) -> tuple[ir.Value, list[int]]:
    """Transpose `dims` to the front; also returns the other dimensions, in order."""
    rest = [d for d in range(rank) if d not in dims]
    perm = [*dims, *rest]
    return (value if perm == sorted(perm) else e.op("Transpose", value, perm=perm)), rest


def stacked_indices(e: Emitter, indices: Sequence[Node]) -> ir.Value:
    """Index tensors broadcast against each other and stacked in a new last dimension, as GatherND wants them."""
    shape = list(torch.broadcast_shapes(*[val(i).shape for i in indices]))
    parts = []
    for node in indices:
        value = e.tensor(node, torch.int64)
        if sizes(val(node).shape) != sizes(shape):
            value = e.op("Expand", value, e.shape(shape))
        parts.append(e.op("Unsqueeze", value, e.ints([-1])))
    return parts[0] if len(parts) == 1 else e.op("Concat", *parts, axis=-1)


@rule(aten.topk.default)
def topk(
    e: Emitter, node: Node, x: Arg, k: Arg, dim: int = -1, largest: bool = True, ordered: bool = True
) -> list[ir.Value]:
    return e.op(
        "TopK",
        e.tensor(x),
        e.shape([k], "k"),
        axis=axis(dim, val(x).dim()),
        largest=int(largest),
        sorted=int(ordered),
        outputs=2,
    )


def _sorted(e: Emitter, x: Arg, dim: int, descending: bool) -> list[ir.Value]:
    at = axis(dim, val(x).dim())
    return e.op(
        "TopK", e.tensor(x), e.shape([val(x).shape[at]], "k"), axis=at, largest=int(descending), sorted=1, outputs=2
    )


@rule(aten.sort.default)
def sort(e: Emitter, node: Node, x: Arg, dim: int = -1, descending: bool = False) -> list[ir.Value]:
    return _sorted(e, x, dim, descending)


@rule(aten.sort.stable)
def sort_stable(
    e: Emitter, node: Node, x: Arg, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> list[ir.Value]:
    """TopK breaks ties by the lower index, which is what stable means."""
    return _sorted(e, x, dim, descending)


def _ranked(e: Emitter, node: Node, x: Arg, rank: int, dim: int, keepdim: bool) -> list[ir.Value]:
    """(value, index) of the element at position `rank` (from 0) in ascending order."""
    if val(x).dim() == 0:
        return [e.op("Identity", e.tensor(x)), e.scalar(0, torch.int64)]
    at = axis(dim, val(x).dim())
    found = []
    for part in e.op("TopK", e.tensor(x), e.ints([rank + 1], "k"), axis=at, largest=0, sorted=1, outputs=2):
        taken = e.op("Slice", part, e.ints([rank], "starts"), e.ints([rank + 1], "ends"), e.ints([at]))
        found.append(taken if keepdim else e.op("Squeeze", taken, e.ints([at])))
    return found


@rule(aten.kthvalue.default)
def kthvalue(e: Emitter, node: Node, x: Arg, k: int, dim: int = -1, keepdim: bool = False) -> list[ir.Value]:
    return _ranked(e, node, x, k - 1, dim, keepdim)


@rule(aten.median.dim)
def median(e: Emitter, node: Node, x: Arg, dim: int, keepdim: bool = False) -> list[ir.Value]:
    """The lower of the two in the middle. A NaN is not looked for."""
    size = val(x).shape[axis(dim, val(x).dim())] if val(x).dim() else 1
    if not isinstance(size, int):
        raise e.refuse("the median of a symbolic dimension; leave it out of dynamic", node)
    return _ranked(e, node, x, (size - 1) // 2, dim, keepdim)


@rule(aten.bucketize.Tensor)
def bucketize(e: Emitter, node: Node, x: Arg, edges: Arg, out_int32: bool = False, right: bool = False) -> ir.Value:
    wide = e.op("Unsqueeze", e.tensor(x), e.ints([-1]))
    passed = e.op("GreaterOrEqual" if right else "Greater", wide, e.tensor(edges, dtype_of(x)))
    return e.op("ReduceSum", e.cast(passed, val(node).dtype), e.ints([-1]), keepdims=0)


@rule(aten.unfold.default)
def unfold(e: Emitter, node: Node, x: Arg, dim: int, size: int, step: int) -> ir.Value:
    """Windows along a dimension: Gather with a constant [windows, size] index, the window moved last."""
    rank = val(x).dim()
    at = axis(dim, rank)
    windows: Any = val(node).shape[at]
    if not isinstance(windows, int):
        raise e.refuse(f"windows over the symbolic dimension {at}; leave that dimension out of dynamic", node)
    starts = torch.arange(windows).unsqueeze(1) * step + torch.arange(size)
    gathered = e.op("Gather", e.tensor(x), e.torch_constant(starts, "windows"), axis=at)
    if at == rank - 1:
        return gathered
    perm = [d for d in range(rank + 1) if d != at + 1]
    return e.op("Transpose", gathered, perm=[*perm, at + 1])
