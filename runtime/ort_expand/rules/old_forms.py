"""Broadcasting from before opset 7, in the form that ONNX's converter takes. Only these rules see such old models."""

from __future__ import annotations

from collections.abc import Mapping

from pfvm.runtime.ort_expand.node import Builder, Node, Rule


def _prelu(node: Node, b: Builder) -> list[str] | None:
    """One slope per channel: [C] of an input [N, C, …] becomes [C, 1, …], which is what broadcasting takes since 7."""
    slope, rank = node.shape(1), node.rank(0)
    if node.since_version >= 7 or slope is None or rank is None or len(slope) != 1 or slope[0] == 1 or rank < 3:
        return None
    return b.copy(node, inputs=[node.input(0), b.unsqueeze(node.input(1), *range(1, rank - 1))])


def _broadcast_from_an_axis(node: Node, b: Builder) -> list[str] | None:
    """With axis = a, dim 0 of the second operand stands at dim a of the first: dims of 1 fill what is left behind."""
    first, second = node.rank(0), node.rank(1)
    if node.since_version >= 7 or not node.attr("broadcast") or not node.has_attr("axis"):
        return None
    if first is None or second is None:
        return None
    behind = first - node.attr("axis") % first - second
    operand = b.unsqueeze(node.input(1), *range(second, second + behind)) if behind > 0 else node.input(1)
    return b.copy(node, inputs=[node.input(0), operand], axis=None)


_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")

RULES: Mapping[tuple[str, str], Rule] = {
    ("", "PRelu"): _prelu,
    **{("", name): _broadcast_from_an_axis for name in _BINARY},
}
