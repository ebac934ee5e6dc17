"""Operators whose output is their first input's memory under another shape, where the layout allows it."""

from __future__ import annotations

import onnx_ir as ir

from .table import Rule, rank

_NAMES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Identity")


def permutation(node: ir.Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose, None for the others, which keep the order of elements."""
    if node.op_type != "Transpose":
        return None
    perm = node.attributes.get_ints("perm", None)
    return tuple(perm) if perm is not None else tuple(reversed(range(rank(node.inputs[0]))))


RULES = {("", name): Rule("reuse", flops=lambda node: 0, keeps_zero=True) for name in _NAMES}
RULES["", "Constant"] = Rule("constant", flops=lambda node: 0)
