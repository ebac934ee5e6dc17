"""What moves, cuts and joins elements."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, Gradients, NotCovered, gradient_of

V = ir.Value


@gradient_of("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return [b.reshape(dy, n.x()), *[None] * (n.count - 1)]


@gradient_of("Transpose")
def _transpose(b: Builder, n: ForwardNode, dy: V) -> V:
    rank = b.rank(n.x())
    perm = n.attr("perm", tuple(reversed(range(rank))))
    return b.transpose(dy, [perm.index(i) for i in range(rank)])


@gradient_of("Expand")
def _expand(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return [b.sum_to(dy, n.x()), None]


@gradient_of("Concat")
def _concat(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    axis = n.attr("axis") % b.rank(n.x())
    lengths = [b.shape(n.x(i), axis, axis + 1) for i in range(n.count)]
    known = [_number(length) for length in lengths]
    if n.count == 1:
        return [dy]
    sizes = b.ints(*known) if None not in known else b.op("Concat", *lengths, axis=0)  # type: ignore[arg-type]
    return b.ops(n.count, "Split", dy, sizes, axis=axis)


def _number(value: V) -> int | None:
    return int(value.const_value.numpy()[0]) if value.const_value is not None else None


@gradient_of("Split")
def _split(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    parts = [n.gradients.get(out) or b.zeros(out) for out in n.node.outputs]
    return [b.op("Concat", *parts, axis=n.attr("axis")), *[None] * (n.count - 1)]


@gradient_of("Slice")
def _slice(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x, rest = n.x(), [None] * (n.count - 1)
    pads = _slice_pads(b, n)
    if pads is not None:
        return [b.op("Pad", dy, pads, b.like(0, dy)), *rest]
    # Any starts and steps: the same slice of the elements' numbers says where each one came from.
    count = b.op("Size", x)
    numbers = b.op("Range", b.op("Squeeze", b.ints(0)), count, b.op("Squeeze", b.ints(1)))
    where = b.op("Slice", b.op("Reshape", numbers, b.shape(x)), *(n.view.at(i) for i in range(1, n.count)))
    flat = b.fill(b.op("Reshape", count, b.ints(1)), 0, dy)
    spread = b.op("ScatterElements", flat, b.op("Reshape", where, b.ints(-1)), b.op("Reshape", dy, b.ints(-1)))
    return [b.reshape(spread, x), *rest]


def _slice_pads(b: Builder, n: ForwardNode) -> V | None:
    """Pads that put the slice back in its place, where its steps are 1 and its starts known."""
    x, starts, axes, steps = n.x(), n.known(1), n.known(3), n.known(4)
    unreadable = (n.view.at(3) is not None and axes is None) or (n.view.at(4) is not None and steps is None)
    if starts is None or unreadable or (steps is not None and (steps != 1).any()) or x.shape is None:
        return None
    rank = b.rank(x)
    before = [0] * rank
    for start, axis in zip(starts.tolist(), axes.tolist() if axes is not None else range(len(starts))):
        dim = x.shape[axis]
        if start < 0 and not isinstance(dim, int):
            return None
        before[axis] = start if not isinstance(dim, int) else min(max(start + dim * (start < 0), 0), dim)
    whole, part = list(x.shape), list(n.y.shape or ())
    if len(part) == rank and all(isinstance(d, int) for d in (*whole, *part)):
        return b.ints(*before, *(int(w) - int(p) - s for w, p, s in zip(whole, part, before)))  # type: ignore[arg-type]
    after = b.sub(b.sub(b.shape(x), b.shape(n.y)), b.ints(*before))
    return b.op("Concat", b.ints(*before), after, axis=0)


@gradient_of("Pad")
def _pad(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if n.attr("mode", "constant") != "constant" or n.wants(2):
        raise NotCovered
    pads = n.known(1)
    back = b.constant(-pads) if pads is not None else b.op("Neg", n.x(1))
    return [b.op("Pad", dy, back, b.like(0, dy), n.view.at(3)), *[None] * (n.count - 1)]


@gradient_of("Gather")
def _gather(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x, indices = n.x(), n.x(1)
    rank, inner = b.rank(x), b.rank(indices)
    axis = n.attr("axis") % rank
    perm = [axis, *(i for i in range(rank) if i != axis)]  # x with the gathered axis first
    moved = b.transpose(dy, [*range(axis, axis + inner), *range(axis), *range(axis + inner, rank - 1 + inner)])
    base = b.zeros(b.transpose(x, perm))
    where = b.op("Unsqueeze", b.cast(indices, ir.DataType.INT64), b.ints(-1))
    added = b.op("ScatterND", base, where, moved, reduction="add")
    return [b.transpose(added, [perm.index(i) for i in range(rank)]), None]


@gradient_of("GatherElements")
def _gather_elements(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return [b.op("ScatterElements", b.zeros(n.x()), n.x(1), dy, axis=n.attr("axis"), reduction="add"), None]


@gradient_of("GatherND")
def _gather_nd(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if n.attr("batch_dims"):
        raise NotCovered
    return [b.op("ScatterND", b.zeros(n.x()), n.x(1), dy, reduction="add"), None]


@gradient_of("ScatterElements")
def _scatter_elements(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    mode, axis = n.attr("reduction", "none"), n.attr("axis")
    if mode not in ("none", "add"):
        raise NotCovered
    data = dy
    if n.wants(0) and mode == "none":
        data = b.op("ScatterElements", dy, n.x(1), b.zeros(n.x(2)), axis=axis)
    return [data, None, b.op("GatherElements", dy, n.x(1), axis=axis) if n.wants(2) else None]


@gradient_of("ScatterND")
def _scatter_nd(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    mode = n.attr("reduction", "none")
    if mode not in ("none", "add"):
        raise NotCovered
    data = dy
    if n.wants(0) and mode == "none":
        data = b.op("ScatterND", dy, n.x(1), b.zeros(n.x(2)))
    return [data, None, b.op("GatherND", dy, n.x(1)) if n.wants(2) else None]


@gradient_of("CumSum")
def _cum_sum(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return [b.op("CumSum", dy, n.x(1), exclusive=n.attr("exclusive"), reverse=1 - n.attr("reverse")), None]


@gradient_of("TopK")
def _top_k(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    where, axis = n.node.outputs[1], n.attr("axis")
    if not where.name:
        raise NotCovered
    return [b.op("ScatterElements", b.zeros(n.x()), where, dy, axis=axis), None]
