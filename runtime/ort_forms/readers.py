"""What follows a node and becomes part of it: Slices that leave outputs out, a Transpose back, arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.view import constant


def swapping_reader(node: ir.Node, rw: Rewriter) -> ir.Node | None:
    """The Transpose of the first two axes that alone reads the node's output."""
    reader = only_reader(node, ("Transpose",), rw)
    if reader is None:
        return None
    perm = list(rw.view(reader).attr("perm") or ())
    return reader if len(perm) > 1 and perm == [1, 0, *range(2, len(perm))] else None


def kept_outputs(node: ir.Node, sizes: list[int], rw: Rewriter) -> tuple[ir.Node, list[int]]:
    """The last of the Slices that cut spatial axes at the end, or the node itself, and the sizes that remain."""
    while True:
        reader = only_reader(node, ("Slice",), rw)
        kept = None
        if reader is not None and reader.inputs[0] is node.outputs[0]:
            kept = _kept(reader, sizes)
        if reader is None or kept is None:
            return node, sizes
        node, sizes = reader, kept


def only_reader(node: ir.Node, op_types: Collection[str], rw: Rewriter) -> ir.Node | None:
    """The node that alone reads this one's output, once and in the same graph, where it is one of these operators."""
    out = node.outputs[0]
    uses = list(out.uses())
    if len(uses) != 1 or out.is_graph_output():
        return None
    reader = uses[0].node
    return reader if reader.op_type in op_types and rw.is_standard(reader) and reader.graph is node.graph else None


def _kept(node: ir.Node, sizes: Sequence[int]) -> list[int] | None:
    """Sizes after a Slice that starts at 0 with step 1 on spatial axes; None for any other."""
    starts, ends, axes, steps = (constant(value) for value in (*node.inputs[1:], None, None, None)[:4])
    if starts is None or ends is None or axes is None or (len(node.inputs) > 4 and steps is None):
        return None
    if any(starts) or (steps is not None and any(steps != 1)):
        return None
    kept = list(sizes)
    for axis, end in zip(axes.tolist(), ends.tolist()):
        spatial = (axis if axis >= 0 else axis + len(sizes) + 2) - 2
        if spatial < 0:
            return None
        kept[spatial] = min(kept[spatial], end if end >= 0 else end + kept[spatial])
    return kept if all(size > 0 for size in kept) else None
