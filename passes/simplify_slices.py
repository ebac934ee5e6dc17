"""simplify-slices: parts that are put together again, and parts of parts."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import same_dims
from .rewriter import Rewriter
from .rules import apply_rules, forward, rule, rules_in
from .view import constant


@dataclasses.dataclass(frozen=True)
class SimplifySlices:
    """Drop a Concat of all parts in order, merge nested Concats and Slices, read a part where it was put in.

    before:  x ─ Split ─┬ a ─┐                  x ─ Slice(1:9) ─ Slice(2:4) ─ y    Concat(a[2], b[3]) ─ Slice(2:5) ─ z
                        └ b ─ Concat ─ y
    after:   x ─────────────────────── y        x ─ Slice(3:5) ─ y                 b ─ z

    Only data moves, so every type and value is kept. Bounds must be constant and the dims that they cut proved.
    """

    name: ClassVar[str] = "simplify-slices"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


_PARTS = 64
"""A Concat that joins another several times may have as many operands; more only where each part is joined once."""
_NO_CUT = "the bounds or the dim that they cut are not known, or it steps, or cuts several axes"
Cut = tuple[int, int, int]
"""Axis, start and end of a Slice by steps of 1 along one axis, resolved against a known dim."""


def _cut(node: ir.Node | None, rw: Rewriter) -> Cut | None:
    if node is None or node.inputs[0] is None or node.inputs[0].shape is None:
        return None
    shape, cuts = node.inputs[0].shape, rw.view(node).cuts()
    if cuts is None or len(cuts) != 1:
        return None
    ((axis, start, end, step),) = cuts
    if step != 1 or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    if not isinstance(dim, int):
        return None
    bounds = [min(max(bound + dim if bound < 0 else bound, 0), dim) for bound in (start, end)]
    return axis % len(shape), bounds[0], max(bounds)


@rule("Slice")
def slice_of_slice(node: ir.Node, rw: Rewriter) -> bool:
    """Slice(Slice(x)) along the same axis → Slice(x)."""
    inner = rw.producer(node.inputs[0], "Slice")
    if inner is None:
        return False
    outer_cut, inner_cut = _cut(node, rw), _cut(inner, rw)
    if outer_cut is None or inner_cut is None:
        return rw.reject("slice_of_slice", _NO_CUT)
    if outer_cut[0] != inner_cut[0]:
        return False
    axis, start, end = outer_cut
    first = inner_cut[1]
    new = rw.op("Slice", inner.inputs[0], at=node, starts=[first + start], ends=[first + end], axes=[axis])
    rw.replace(node, new.outputs[0])
    return True


@rule("Slice")
def slice_of_other_axes(node: ir.Node, rw: Rewriter) -> bool:
    """Slice(Slice(x)) along other axes, the inner one read here alone → Slice(x)."""
    inner, out = rw.producer(node.inputs[0], "Slice"), node.inputs[0]
    if inner is None or out is None or inner.inputs[0] is None:
        return False
    if len(out.uses()) != 1 or out.is_graph_output():
        return rw.reject("slice_of_other_axes", "the inner one is needed elsewhere")
    first, second = rw.view(inner).cuts(), rw.view(node).cuts()
    shape = inner.inputs[0].shape
    if first is None or second is None or shape is None:
        return rw.reject("slice_of_other_axes", "bounds, axes or rank are not known")
    cuts = sorted((axis % len(shape), *numbers) for axis, *numbers in [*first, *second])
    axes, starts, ends, steps = zip(*cuts)
    if len(set(axes)) < len(axes):
        return False
    by = None if set(steps) == {1} else steps
    new = rw.op("Slice", inner.inputs[0], at=node, starts=starts, ends=ends, axes=axes, steps=by)
    rw.replace(node, new.outputs[0])
    return True


@rule("Slice")
def slice_of_concat(node: ir.Node, rw: Rewriter) -> bool:
    """Slice(Concat(…)) that lies in one of the parts → that part, or Slice of it."""
    concat = rw.producer(node.inputs[0], "Concat")
    if concat is None:
        return False
    cut = _cut(node, rw)
    if cut is None or node.outputs[0].shape is None:
        return rw.reject("slice_of_concat", _NO_CUT)
    axis, start, end = cut
    along, rank = rw.view(concat).attr("axis"), len(node.outputs[0].shape)
    if not isinstance(along, int) or along % rank != axis or start == end:
        return False
    offset = 0
    for part in concat.inputs:
        size = part.shape[axis] if part is not None and part.shape is not None and len(part.shape) == rank else None
        if part is None or not isinstance(size, int):
            return rw.reject("slice_of_concat", "the size of a part is not known")
        if offset <= start and end <= offset + size:
            if (start, end) == (offset, offset + size):
                if same_dims(part.shape, node.outputs[0].shape):
                    return forward(node, rw, part, "slice_of_concat")
                return rw.reject("slice_of_concat", "the part is not proved to have the shape of the result")
            new = rw.op("Slice", part, at=node, starts=[start - offset], ends=[end - offset], axes=[axis])
            rw.replace(node, new.outputs[0])
            return True
        offset += size
    return rw.reject("slice_of_concat", "it takes of several parts")


@rule("Concat")
def concat_of_parts(node: ir.Node, rw: Rewriter) -> bool:
    """Concat of all the outputs of a Split, or of Slices that follow each other from 0 to the end → what was cut."""
    axis, first = rw.view(node).attr("axis"), node.inputs[0]
    if not isinstance(axis, int) or len(node.inputs) < 2 or first is None or first.shape is None or not first.shape:
        return False
    axis %= len(first.shape)
    whole = _split_whole(node, axis, rw) or _sliced_whole(node, axis, rw)
    if whole is None or not same_dims(whole.shape, node.outputs[0].shape):
        cuts = [rw.producer(part, "Split") or rw.producer(part, "Slice") for part in node.inputs]
        sources = {cut.inputs[0] if cut is not None else None for cut in cuts}
        parts_of_one = len(sources) == 1 and None not in sources
        return parts_of_one and rw.reject("concat_of_parts", "the parts are not proved to be all, in order")
    return forward(node, rw, whole, "concat_of_parts")


def _split_whole(node: ir.Node, axis: int, rw: Rewriter) -> ir.Value | None:
    split = rw.producer(node.inputs[0], "Split")
    if split is None or split.inputs[0] is None or list(split.outputs) != list(node.inputs):
        return None
    along = rw.view(split).attr("axis")
    rank = len(split.inputs[0].shape) if split.inputs[0].shape is not None else None
    return split.inputs[0] if rank and isinstance(along, int) and along % rank == axis else None


def _sliced_whole(node: ir.Node, axis: int, rw: Rewriter) -> ir.Value | None:
    whole: ir.Value | None = None
    reached = 0
    for part in node.inputs:
        piece = rw.producer(part, "Slice")
        cut = _cut(piece, rw)
        if piece is None or cut is None or cut[:2] != (axis, reached):
            return None
        if whole is not None and piece.inputs[0] is not whole:
            return None
        whole, reached = piece.inputs[0], cut[2]
    return whole if whole is not None and whole.shape is not None and whole.shape[axis] == reached else None


@rule("Concat")
def concat_of_concat(node: ir.Node, rw: Rewriter) -> bool:
    """Concat(a, Concat(b, c)) along the same axis, the inner one read here alone → Concat(a, b, c)."""
    axis, out = rw.view(node).attr("axis"), node.outputs[0]
    if not isinstance(axis, int) or out.shape is None:
        return False
    rank, parts, inners = len(out.shape), list[ir.Value | None](), set[ir.Node]()
    for part in node.inputs:
        inner = rw.producer(part, "Concat")
        along = rw.view(inner).attr("axis") if inner is not None else None
        own = part is not None and all(use.node is node for use in part.uses()) and not part.is_graph_output()
        here = inner is not None and inner.graph is node.graph
        same_axis = inner is not None and isinstance(along, int) and along % rank == axis % rank
        if inner is not None and same_axis and own and here:
            inners.add(inner)
            parts.extend(inner.inputs)
            continue
        if same_axis:
            rw.reject("concat_of_concat", "the inner one is needed elsewhere")
        parts.append(part)
    if len(parts) == len(node.inputs):
        return False
    if len(parts) > max(_PARTS, sum(len(inner.inputs) for inner in inners) + len(node.inputs)):
        return rw.reject("concat_of_concat", "what is joined several times has many parts")
    rw.replace(node, rw.op("Concat", *parts, at=node, axis=axis).outputs[0])
    return True


@rule("Gather")
def gather_of_concat(node: ir.Node, rw: Rewriter) -> bool:
    """Gather of one constant index from a Concat → Gather from the part that holds it."""
    concat, index, axis = rw.producer(node.inputs[0], "Concat"), constant(node.inputs[1]), rw.view(node).attr("axis")
    data = node.inputs[0]
    if concat is None or data is None or data.shape is None:
        return False
    if index is None or index.size != 1:
        return rw.reject("gather_of_concat", "it does not take one element at a constant index")
    along, rank = rw.view(concat).attr("axis"), len(data.shape)
    if not isinstance(along, int) or not isinstance(axis, int) or along % rank != axis % rank:
        return False
    axis %= rank
    sizes = [part.shape[axis] if part is not None and part.shape is not None else None for part in concat.inputs]
    numbers = [size for size in sizes if isinstance(size, int)]
    place = int(index.reshape(()))
    place = place + sum(numbers) if place < 0 else place
    if len(numbers) != len(sizes) or not 0 <= place < sum(numbers):
        return rw.reject("gather_of_concat", "the size of a part is not known")
    ends = np.cumsum(numbers)
    which = int(np.searchsorted(ends, place, side="right"))
    local = np.full(index.shape, place - (int(ends[which]) - numbers[which]), index.dtype)
    at = rw.constant(local, f"{node.outputs[0].name}_index", node)
    rw.replace(node, rw.op("Gather", concat.inputs[which], at, at=node, axis=axis).outputs[0])
    return True


@rule("Gather")
def gather_of_unsqueeze(node: ir.Node, rw: Rewriter) -> bool:
    """Gather of the one element along an axis that Unsqueeze has put in → what it was put into."""
    unsqueeze, index = rw.producer(node.inputs[0], "Unsqueeze"), constant(node.inputs[1])
    axis = rw.view(node).attr("axis")
    if unsqueeze is None or index is None or index.ndim or int(index) not in (0, -1) or not isinstance(axis, int):
        return False
    axes, data = rw.view(unsqueeze).ints("axes"), node.inputs[0]
    if not isinstance(axes, tuple) or len(axes) != 1 or data is None or data.shape is None:
        return False
    rank = len(data.shape)
    return axes[0] % rank == axis % rank and forward(node, rw, unsqueeze.inputs[0], "gather_of_unsqueeze")


@rule("Split")
def split_for_one(node: ir.Node, rw: Rewriter) -> bool:
    """Split of which one output is read, with known sizes → Slice."""
    used, view = rw.view(node).used_outputs(), rw.view(node)
    source, axis = node.inputs[0], view.attr("axis")
    if len(used) != 1 or len(node.outputs) < 2 or not isinstance(axis, int):
        return False
    if source is None or source.shape is None:
        return rw.reject("split_for_one", "the rank is not known")
    axis %= len(source.shape)
    sizes = [out.shape[axis] if out.shape is not None else None for out in node.outputs]
    numbers = [size for size in sizes[: used[0] + 1] if isinstance(size, int)]
    if len(numbers) != used[0] + 1:
        return rw.reject("split_for_one", "the size of a part is not known")
    start = sum(numbers[:-1])
    new = rw.op("Slice", source, at=node, starts=[start], ends=[start + numbers[-1]], axes=[axis])
    rw.replace(node, *[None] * used[0], new.outputs[0])
    return True


@rule("SplitToSequence")
def split_into_known_parts(node: ir.Node, rw: Rewriter) -> bool:
    """SplitToSequence into parts that are each taken out by a constant SequenceAt → Split."""
    source, out, axis = node.inputs[0], node.outputs[0], rw.view(node).attr("axis")
    readers = [use.node for use in out.uses()]
    known = all(reader.op_type == "SequenceAt" and rw.is_standard(reader) for reader in readers)
    if not readers or out.is_graph_output() or not known:
        return rw.reject("split_into_known_parts", "the sequence itself is needed")
    sizes = _part_sizes(node, axis, rw)
    if sizes is None or source is None:
        return rw.reject("split_into_known_parts", "the sizes of the parts are not known")
    indices = [constant(reader.inputs[1]) for reader in readers]
    if any(index is None or index.size != 1 or not -len(sizes) <= int(index) < len(sizes) for index in indices):
        return rw.reject("split_into_known_parts", "which part is taken is not known")
    parts = rw.op("Split", source, at=node, outputs=len(sizes), axis=axis, split=sizes).outputs
    for reader, index in zip(readers, indices, strict=True):
        assert index is not None
        forward(reader, rw, parts[int(index)], "split_into_known_parts")
    return True


def _part_sizes(node: ir.Node, axis: object, rw: Rewriter) -> list[int] | None:
    """Of a SplitToSequence, along an axis whose dim they add up to."""
    source, split = node.inputs[0], constant(node.inputs[1]) if len(node.inputs) > 1 else None
    shape = source.shape if source is not None else None
    if shape is None or split is None or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    if not isinstance(dim, int):
        return None
    if split.ndim == 0:
        size = int(split)
        return [min(size, dim - start) for start in range(0, dim, size)] if size > 0 and dim else None
    sizes = [int(each) for each in split]
    return sizes if sizes and min(sizes) >= 0 and sum(sizes) == dim else None


RULES = rules_in(globals())
