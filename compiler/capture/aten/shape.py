"""Views, transposes, joins and splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, axis, sizes, val

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node
LAST = 2**63 - 1


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(e: Emitter, node: Node, x: Arg, sizes: Sequence[Arg]) -> ir.Value:
    allow_zero = 1 if any(s == 0 for s in sizes if isinstance(s, int)) else None
    return e.op("Reshape", e.tensor(x), e.shape(sizes), allowzero=allow_zero)


@rule(aten.unsqueeze.default)
def unsqueeze(e: Emitter, node: Node, x: Arg, dim: int) -> ir.Value:
    return e.op("Unsqueeze", e.tensor(x), e.ints([axis(dim, val(node).dim())]))


@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(e: Emitter, node: Node, x: Arg, dims: int | Sequence[int] | None = None) -> ir.Value:
    rank = val(x).dim()
    chosen = range(rank) if dims is None else [axis(d, rank) for d in ([dims] if isinstance(dims, int) else dims)]
    if any(d < rank and not isinstance(val(x).shape[d], int) for d in chosen):
        raise e.refuse("drops a symbolic dimension when it is 1; name the dimensions to squeeze", node)
    axes = sorted(d for d in chosen if d < rank and val(x).shape[d] == 1)
    return e.op("Squeeze", e.tensor(x), e.ints(axes)) if axes else e.op("Identity", e.tensor(x))


@rule(aten.permute.default)
def permute(e: Emitter, node: Node, x: Arg, dims: Sequence[int]) -> ir.Value:
    perm = [axis(d, len(dims)) for d in dims]
    if perm == sorted(perm):  # never an identity Transpose: ONNX Runtime 1.32 mis-fuses Gemm after it
        return e.op("Identity", e.tensor(x))
    return e.op("Transpose", e.tensor(x), perm=perm)


@rule(aten.transpose.int)
def transpose(e: Emitter, node: Node, x: Arg, first: int, second: int) -> ir.Value:
    rank = val(x).dim()
    perm = list(range(rank))
    if rank:
        first, second = axis(first, rank), axis(second, rank)
        perm[first], perm[second] = perm[second], perm[first]
    return permute(e, node, x, perm)


@rule(aten.t.default)
def t(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return permute(e, node, x, list(reversed(range(val(x).dim()))) if val(x).dim() == 2 else list(range(val(x).dim())))


@rule(aten.expand.default)
def expand(e: Emitter, node: Node, x: Arg, sizes: Sequence[Arg], implicit: bool = False) -> ir.Value:
    return e.op("Expand", e.tensor(x), e.shape([1 if isinstance(s, int) and s == -1 else s for s in sizes]))


@rule(aten.repeat.default)
def repeat(e: Emitter, node: Node, x: Arg, repeats: Sequence[Arg]) -> ir.Value:
    value = e.tensor(x)
    extra = len(repeats) - val(x).dim()
    if extra:
        value = e.op("Unsqueeze", value, e.ints(list(range(extra))))
    return e.op("Tile", value, e.shape(repeats, "repeats"))


@rule(aten.cat.default)
def cat(e: Emitter, node: Node, tensors: Sequence[Node], dim: int = 0) -> ir.Value:
    rank = val(node).dim()
    # torch still lets an empty 1-D tensor join anything
    parts = [x for x in tensors if not (rank != 1 and val(x).dim() == 1 and val(x).shape[0] == 0)]
    return e.op("Concat", *[e.tensor(x, val(node).dtype) for x in parts], axis=axis(dim, rank))


@rule(aten.stack.default)
def stack(e: Emitter, node: Node, tensors: Sequence[Node], dim: int = 0) -> ir.Value:
    at = axis(dim, val(node).dim())
    parts = [e.op("Unsqueeze", e.tensor(x, val(node).dtype), e.ints([at])) for x in tensors]
    return e.op("Concat", *parts, axis=at)


def _split(e: Emitter, x: Arg, sizes: Sequence[Arg], at: int) -> list[ir.Value]:
    made = e.op("Split", e.tensor(x), e.shape(sizes, "split"), axis=at, outputs=len(sizes))
    return made if isinstance(made, list) else [made]


@rule(
    aten.split.Tensor,
    aten.unsafe_split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split_with_sizes.default,
)
def split(e: Emitter, node: Node, x: Arg, sizes: Any, dim: int = 0) -> list[ir.Value]:
    at = axis(dim, val(x).dim())
    return _split(e, x, [part.shape[at] for part in val(node)], at)


@rule(aten.unbind.int)
def unbind(e: Emitter, node: Node, x: Arg, dim: int = 0) -> list[ir.Value]:
    at = axis(dim, val(x).dim())
    parts = _split(e, x, [1] * len(val(node)), at)
    return [e.op("Squeeze", part, e.ints([at])) for part in parts]


@rule(aten.slice.Tensor)
def slice_(e: Emitter, node: Node, x: Arg, dim: int = 0, start: Arg = None, end: Arg = None, step: int = 1) -> ir.Value:
    at = e.ints([axis(dim, val(x).dim())])
    first = e.shape([0 if start is None else start], "starts")
    last = e.shape([LAST if end is None else end], "ends")
    return e.op("Slice", e.tensor(x), first, last, at, None if step == 1 else e.ints([step], "steps"))


@rule(aten.select.int)
def select(e: Emitter, node: Node, x: Arg, dim: int, index: Arg) -> ir.Value:
    return e.op("Gather", e.tensor(x), e.size(index), axis=axis(dim, val(x).dim()))


@rule(aten.diagonal.default)
def diagonal(e: Emitter, node: Node, x: Arg, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ir.Value:
    """Both dimensions moved to the end and read at constant (row, column) pairs."""
    rank = val(x).dim()
    first, second = axis(dim1, rank), axis(dim2, rank)
    length: Any = val(node).shape[-1]
    if not isinstance(length, int):
        raise e.refuse("the diagonal of a symbolic dimension; leave it out of dynamic", node)
    steps = torch.arange(length)
    pairs = torch.stack([steps + max(-offset, 0), steps + max(offset, 0)], -1)
    rest = [d for d in range(rank) if d not in (first, second)]
    front = permute(e, node, x, [first, second, *rest])
    read = e.op("GatherND", front, e.torch_constant(pairs, "pairs"))
    return e.op("Transpose", read, perm=[*range(1, len(rest) + 1), 0]) if rest else read


@rule(aten.as_strided.default)
def as_strided(e: Emitter, node: Node, x: Arg, size: Any, stride: Any, storage_offset: Any = None) -> ir.Value:
    """The same elements in the same order (only strides of dimensions of size 1 differ, as after adaptive pooling of a
    channels-last image), or a gather of places in memory from x laid out as its memory is."""
    seen, result = val(x), val(node)
    here, there = sizes(seen.shape), sizes(result.shape)
    strides = list(zip(here, sizes(seen.stride()), sizes(result.stride()))) if here == there else None
    if strides is not None and all(n == 1 or a == b for n, a, b in strides) and storage_offset in (None, 0):
        return e.op("Identity", e.tensor(x))
    if not all(isinstance(n, int) for n in (*here, *there, *sizes(seen.stride()), *sizes(result.stride()))):
        raise e.refuse("places in memory of a symbolic dimension; write it with unfold or slices", node)
    order = sorted((d for d in range(len(here))), key=lambda d: (-seen.stride(d), -here[d]))
    dense = torch.empty([here[d] for d in order], device="meta").stride()
    if any(here[d] > 1 and seen.stride(d) != step for d, step in zip(order, dense)):
        raise e.refuse("reads memory beside a view; copy the view with .contiguous() first", node)
    places = np.array(result.storage_offset() - seen.storage_offset(), np.int64)
    for n, step in zip(there, result.stride()):
        places = places[..., None] + np.arange(n) * step
    if places.size and not 0 <= places.min() <= places.max() < seen.numel():
        raise e.refuse("reads memory beside a view; copy the view with .contiguous() first", node)
    flat = e.op("Reshape", permute(e, node, x, order), e.ints([-1], "shape"))
    return e.op("Gather", flat, e.constant(places, "places"))


@rule(aten.flip.default)
def flip(e: Emitter, node: Node, x: Arg, dims: Sequence[int]) -> ir.Value:
    axes = [axis(d, val(x).dim()) for d in dims]
    n = len(axes)
    backwards = e.ints([-1] * n, "steps")
    return e.op("Slice", e.tensor(x), e.ints([-1] * n, "starts"), e.ints([-LAST] * n, "ends"), e.ints(axes), backwards)


@rule(aten.roll.default)
def roll(e: Emitter, node: Node, x: Arg, shifts: Sequence[int], dims: Sequence[int] = ()) -> ir.Value:
    value = e.tensor(x)
    flat = not dims
    if flat:
        value = e.op("Reshape", value, e.ints([-1], "shape"))
    for shift, dim in zip(shifts, dims or [0]):
        at = 0 if flat else axis(dim, val(x).dim())
        size = val(x).numel() if flat else val(x).shape[at]
        if not isinstance(size, int):
            raise e.refuse(f"rolling over the symbolic dimension {at}; slice and torch.cat it", node)
        cut = -shift % max(size, 1)
        axes = e.ints([at])
        tail = e.op("Slice", value, e.ints([cut], "starts"), e.ints([LAST], "ends"), axes)
        head = e.op("Slice", value, e.ints([0], "starts"), e.ints([cut], "ends"), axes)
        value = e.op("Concat", tail, head, axis=at)
    return e.op("Reshape", value, e.shape(list(val(x).shape))) if flat else value


def _pad(mode: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, pad: Sequence[Arg], value: Any = None) -> ir.Value:
        rank = val(x).dim()
        before: list[Arg] = [0] * rank
        after: list[Arg] = [0] * rank
        for i in range(len(pad) // 2):  # pairs, from the last dimension backwards
            before[rank - 1 - i], after[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
        fill = e.scalar(value or 0, val(node).dtype) if mode == "constant" else None
        return e.op(
            "Pad", e.tensor(x), e.shape(before + after, "pads"), fill, mode=None if mode == "constant" else mode
        )

    return apply


rule(aten.constant_pad_nd.default)(_pad("constant"))
rule(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)(_pad("reflect"))
rule(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)(_pad("edge"))


@rule(aten.tril.default, aten.triu.default)
def triangle(e: Emitter, node: Node, x: Arg, diagonal: Arg = 0) -> ir.Value:
    return e.op("Trilu", e.tensor(x), e.size(diagonal), upper=int(node.target is aten.triu.default))


@rule(aten.pixel_shuffle.default)
def pixel_shuffle(e: Emitter, node: Node, x: Arg, factor: int) -> ir.Value:
    return e.op("DepthToSpace", e.tensor(x), blocksize=factor, mode="CRD")
