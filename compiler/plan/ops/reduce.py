"""Reductions: local partial results, then a tree over the levels of the reduced axes and the result back as copies.

Softmax and layer normalization are reductions too: theirs is used in place, the output lies where the input lies.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.placement import Pad
from pfvm.passes.view import constant

from .table import PadNeed, Rule, rank, size

_PADS: dict[str, Pad] = {
    "ReduceSum": "Zero",
    "ReduceMean": "Zero",
    "ReduceL1": "Zero",
    "ReduceL2": "Zero",
    "ReduceSumSquare": "Zero",
    "ReduceLogSum": "Zero",
    "ReduceLogSumExp": "Lowest",
    "ReduceMax": "Lowest",
    "ReduceMin": "Highest",
    "ReduceProd": "One",
    "ArgMax": "Lowest",
    "ArgMin": "Highest",
    "GlobalAveragePool": "Zero",
    "GlobalMaxPool": "Lowest",
}
_IN_PLACE: dict[str, Pad] = {
    "Softmax": "Lowest",
    "LogSoftmax": "Lowest",
    "LayerNormalization": "Zero",
    "RMSNormalization": "Zero",
    "LpNormalization": "Zero",
    "Hardmax": "Lowest",
}


def reduced_axes(node: ir.Node) -> tuple[int, ...]:
    """The axes of the first input that a node of this family reduces, in order."""
    count = rank(node.inputs[0])
    op = node.op_type
    if op in ("ArgMax", "ArgMin"):
        return (node.attributes.get_int("axis", 0) % count,)
    if op in ("GlobalAveragePool", "GlobalMaxPool"):
        return tuple(range(2, count))
    if op in ("LayerNormalization", "RMSNormalization"):
        return tuple(range(node.attributes.get_int("axis", -1) % count, count))
    if op in _IN_PLACE:
        axis = node.attributes.get_int("axis", -1) % max(count, 1)
        return (axis,) if count else ()
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        known = constant(node.inputs[1])
        axes = None if known is None else [int(axis) for axis in np.asarray(known).reshape(-1)]
    if not axes:
        return () if node.attributes.get_int("noop_with_empty_axes", 0) else tuple(range(count))
    return tuple(sorted(axis % count for axis in axes))


def keeps_axes(node: ir.Node) -> bool:
    """Do reduced axes stay in the output, with size 1?"""
    if node.op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        return True
    return bool(node.attributes.get_int("keepdims", 1))


def is_in_place(node: ir.Node) -> bool:
    """Has the output the input's shape: softmax and its like?"""
    return node.op_type in _IN_PLACE


def _need(node: ir.Node) -> tuple[PadNeed | None, ...]:
    pad = _PADS.get(node.op_type) or _IN_PLACE.get(node.op_type) or "Zero"
    return (PadNeed(pad, reduced_axes(node)), *(None,) * (len(node.inputs) - 1))


def _input_elements(times: int) -> Rule:
    return Rule("reduce", flops=lambda node: times * size(node.inputs[0]), pad_need=_need)


RULES = {("", name): _input_elements(1) for name in _PADS}
RULES |= {("", name): _input_elements(5) for name in _IN_PLACE}  # subtract, exp, sum, divide, and the maximum
RULES["pfvm", "ChainerCastReduceSum"] = _input_elements(2)  # the conversion, the sum
