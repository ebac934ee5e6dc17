"""Writing by index, slice or mask into a copy: what in-place updates of locals become."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, axis, dtype_of, sizes, val

from .index import stacked_indices, to_front
from .registry import rule
from .shape import LAST

aten = torch.ops.aten
Node = torch.fx.Node


def _put(e: Emitter, x: Arg, at: int, start: int, stop: int, piece: ir.Value) -> ir.Value:
    """x with x[start:stop] along `at` exchanged for `piece`."""
    value, axes = e.tensor(x), e.ints([at])
    parts = [piece]
    if start > 0:
        parts.insert(0, e.op("Slice", value, e.ints([0], "starts"), e.ints([start], "ends"), axes))
    if sizes([stop]) != sizes([val(x).shape[at]]):
        parts.append(e.op("Slice", value, e.ints([stop], "starts"), e.ints([LAST], "ends"), axes))
    return e.op("Concat", *parts, axis=at) if len(parts) > 1 else e.op("Identity", piece)


def _from_front(e: Emitter, node: Node, position: Arg, size: int | torch.SymInt) -> int:
    """A position counted from the front and clipped to the size."""
    if not isinstance(position, int) or (not isinstance(size, int) and position < 0):
        raise e.refuse("writes to a symbolic position; use torch.where or torch.cat", node)
    if not isinstance(size, int):
        return position
    return min(max(position + size if position < 0 else position, 0), size)


@rule(aten.select_scatter.default)
def select_scatter(e: Emitter, node: Node, x: Arg, piece: Arg, dim: int, index: Arg) -> ir.Value:
    at = axis(dim, val(x).dim())
    wide = e.op("Unsqueeze", e.tensor(piece, val(node).dtype), e.ints([at]))
    if isinstance(index, Node):
        shape = [1 if d == at else size for d, size in enumerate(val(x).shape)]
        return e.op("ScatterElements", e.tensor(x), e.op("Expand", e.size(index), e.shape(shape)), wide, axis=at)
    start = _from_front(e, node, index, val(x).shape[at])
    return _put(e, x, at, start, start + 1, wide)


@rule(aten.slice_scatter.default)
def slice_scatter(
    e: Emitter, node: Node, x: Arg, piece: Arg, dim: int = 0, start: Arg = None, end: Arg = None, step: int = 1
) -> ir.Value:
    at = axis(dim, val(x).dim())
    size = val(x).shape[at]
    value = e.tensor(piece, val(node).dtype)
    if not isinstance(size, int) and start in (None, 0) and end in (None, LAST) and step == 1:
        return e.op("Identity", value)
    first = _from_front(e, node, start or 0, size)
    last = size if end is None or (isinstance(end, int) and end >= LAST) else _from_front(e, node, end, size)
    if step == 1:
        return _put(e, x, at, first, last if not isinstance(last, int) else max(first, last), value)
    steps = e.op("Range", e.size(first), e.size(last), e.size(step))
    column = e.op("Reshape", steps, e.ints([-1 if d == at else 1 for d in range(val(x).dim())], "shape"))
    wide = e.op("Expand", column, e.shape(list(val(piece).shape)))
    return e.op("ScatterElements", e.tensor(x), wide, value, axis=at)


@rule(aten.as_strided_scatter.default, torch.ops.prims.as_strided_scatter.default)
def as_strided_scatter(
    e: Emitter, node: Node, x: Arg, piece: Arg, size: Sequence[Arg], stride: Sequence[Arg], offset: Arg = None
) -> ir.Value:
    """A write to places in memory: what the gradient of as_strided is made of."""
    shape, value = list(val(x).shape), e.tensor(piece, val(node).dtype)
    strides = zip(sizes(shape), sizes(val(x).stride()), sizes(stride))
    if sizes(shape) == sizes(size) and not offset and all(n == 1 or a == b for n, a, b in strides):
        return e.op("Identity", value)
    if not all(isinstance(n, int) for n in (*shape, *size, *stride)) or not val(x).is_contiguous():
        raise e.refuse("a write through as_strided; write it with view, transpose and slices", node)
    places = torch.tensor(offset or 0)
    for n, step in zip(size, stride):
        places = places.unsqueeze(-1) + torch.arange(n) * step
    flat, whole = e.ints([-1], "flat"), e.shape(shape)
    if places.flatten().equal(torch.arange(val(x).numel())):
        return e.op("Reshape", value, whole)
    old = e.op("Reshape", e.tensor(x), flat)
    new = e.op("ScatterElements", old, e.torch_constant(places.flatten(), "places"), e.op("Reshape", value, flat))
    return e.op("Reshape", new, whole)


_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter(e: Emitter, x: Arg, dim: int, indices: Arg, source: Arg, reduction: str | None) -> ir.Value:
    """torch reads only the corner of `source` that the indices cover; ONNX wants equal shapes."""
    dtype = val(x).dtype
    corner = list(val(indices).shape)
    if isinstance(source, Node) and val(source).dim():
        updates = e.tensor(source, dtype)
        if sizes(val(source).shape) != sizes(corner):
            n = len(corner)
            updates = e.op("Slice", updates, e.ints([0] * n, "starts"), e.shape(corner, "ends"), e.ints(list(range(n))))
    else:
        updates = e.op("Expand", e.tensor(source, dtype), e.shape(corner))
    return e.op(
        "ScatterElements", e.tensor(x), e.tensor(indices), updates, axis=axis(dim, val(x).dim()), reduction=reduction
    )


@rule(aten.scatter.src, aten.scatter.value)
def scatter(e: Emitter, node: Node, x: Arg, dim: int, indices: Arg, source: Arg) -> ir.Value:
    return _scatter(e, x, dim, indices, source, None)


@rule(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(e: Emitter, node: Node, x: Arg, dim: int, indices: Arg, source: Arg, *, reduce: str) -> ir.Value:
    return _scatter(e, x, dim, indices, source, _REDUCTIONS[reduce])


@rule(aten.scatter_add.default)
def scatter_add(e: Emitter, node: Node, x: Arg, dim: int, indices: Arg, source: Arg) -> ir.Value:
    return _scatter(e, x, dim, indices, source, "add")


@rule(aten.scatter_reduce.two)
def scatter_reduce(
    e: Emitter, node: Node, x: Arg, dim: int, indices: Arg, source: Arg, reduce: str, *, include_self: bool = True
) -> ir.Value:
    if reduce not in _REDUCTIONS or not include_self:
        raise e.refuse(
            f"reduce={reduce!r}, include_self={include_self} has no ONNX form; use sum, prod, amax or amin", node
        )
    return _scatter(e, x, dim, indices, source, _REDUCTIONS[reduce])


@rule(aten.index_put.default)
def index_put(
    e: Emitter, node: Node, x: Arg, indices: Sequence[Node | None], values: Node, accumulate: bool = False
) -> ir.Value:
    chosen = [i for i in indices if i is not None]
    if any(dtype_of(i) in (torch.bool, torch.uint8) for i in chosen):
        return _put_by_mask(e, node, x, indices, values, accumulate)
    dims = [d for d, i in enumerate(indices) if i is not None]
    front, rest = to_front(e, e.tensor(x), val(x).dim(), dims)
    index_shape = list(torch.broadcast_shapes(*[val(i).shape for i in chosen]))
    others = [val(x).shape[d] for d in rest]
    # Where the indexed dimensions are neighbours, the values have theirs in the same place.
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    updates = e.tensor(values, val(x).dtype)
    wanted = others[:before] + index_shape + others[before:]
    if sizes(val(values).shape) != sizes(wanted):
        updates = e.op("Expand", updates, e.shape(wanted))
    if before:
        n = len(index_shape)
        perm = [*range(before, before + n), *range(before), *range(before + n, len(wanted))]
        updates = e.op("Transpose", updates, perm=perm)
    result = e.op("ScatterND", front, stacked_indices(e, chosen), updates, reduction="add" if accumulate else None)
    order = [*dims, *rest]
    return (
        result
        if order == sorted(order)
        else e.op("Transpose", result, perm=[order.index(d) for d in range(len(order))])
    )


def _put_by_mask(
    e: Emitter, node: Node, x: Arg, indices: Sequence[Node | None], values: Node, accumulate: bool
) -> ir.Value:
    """x[mask] = number is a Where; a mask with as many values as it has hits is not of fixed shape."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or accumulate or val(values).numel() != 1:
        raise e.refuse("a boolean mask takes one number only; use torch.where(mask, values, x)", node)
    condition = e.tensor(mask, torch.bool)
    missing = val(x).dim() - val(mask).dim()
    if missing:
        condition = e.op("Unsqueeze", condition, e.ints([-1 - i for i in range(missing)]))
    number = e.op("Reshape", e.tensor(values, val(x).dtype), e.ints([], "shape"))
    return e.op("Where", condition, number, e.tensor(x))


@rule(aten.masked_scatter.default)
def masked_scatter(e: Emitter, node: Node, x: Arg, mask: Arg, source: Arg) -> ir.Value:
    """The k-th hit of the mask takes the k-th element of the source."""
    flat = e.ints([-1], "shape")
    wide = e.op("Expand", e.tensor(mask), e.shape(list(val(x).shape)))
    hits = e.op("CumSum", e.cast(e.op("Reshape", wide, flat), torch.int64), e.scalar(0, torch.int64, "axis"))
    position = e.op("Max", e.op("Sub", hits, e.scalar(1, torch.int64)), e.scalar(0, torch.int64))
    taken = e.op("Gather", e.op("Reshape", e.tensor(source), flat), position, axis=0)
    return e.op("Where", wide, e.op("Reshape", taken, e.shape(list(val(x).shape))), e.tensor(x))
