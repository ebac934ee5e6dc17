"""fuse-relu-gradient: the gradient of Relu as one node."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from . import fused_function, uniform
from .dims import same_dims
from .rewriter import SEALED_DOMAIN, Rewriter
from .rules import apply_rules, rule, rules_in

NAME = "ReluGrad"


@dataclasses.dataclass(frozen=True)
class FuseReluGradient:
    """A gradient that is let through where the unit is on becomes one call of the local function pfvm::ReluGrad.

    before:  y ─ LessOrEqual(·, 0) ─ Where(·, 0, g) ─ d       after:  ReluGrad(y, g) ─ d

    The body of the function is those two operators: no value changes, NaN and infinities included. A product with a
    0/1 mask would be another thing, 0 · inf being NaN, and stays as it is. Outside model-local functions only.
    """

    name: ClassVar[str] = "fuse-relu-gradient"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Where")
def relu_gradient(node: ir.Node, rw: Rewriter) -> bool:
    """Where(LessOrEqual(y, 0), 0, g) → ReluGrad(y, g)."""
    condition, zero, gradient = node.inputs
    off = rw.producer(condition, "LessOrEqual")
    if (
        off is None
        or condition is None
        or gradient is None
        or not _is_zero(zero, rw)
        or not _is_zero(off.inputs[1], rw)
    ):
        return False
    y = off.inputs[0]
    if len(condition.uses()) > 1 or condition.is_graph_output() or rw.in_function(node) or off.graph is not node.graph:
        return rw.reject("relu_gradient", "the mask is needed elsewhere, or this is a function")
    if y is None or y.dtype is None or y.dtype != gradient.dtype or not y.dtype.is_floating_point():
        return rw.reject("relu_gradient", "not floating point of one type")
    numbers = all(value is not None and value.shape is not None and not value.shape for value in (zero, off.inputs[1]))
    if not numbers and not any(same_dims(each.shape, node.outputs[0].shape) for each in (y, gradient)):
        return rw.reject("relu_gradient", "the zeros are not proved to leave the shape of the operands alone")
    function = _function(rw.opset(node) or 0, y.dtype)
    rw.add_function(function, node)
    call = rw.op(function.name, y, gradient, at=node, domain=SEALED_DOMAIN)
    call.outputs[0].type, call.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    rw.replace(node, call.outputs[0])
    return True


def _is_zero(value: ir.Value | None, rw: Rewriter) -> bool:
    known = uniform.value(value, rw)
    return known is not None and bool(known == 0) and not np.signbit(known)


def _function(opset: int, dtype: ir.DataType) -> ir.Function:
    """The function for one type of element; other types than float are part of the name."""
    y, gradient = ir.Value(name="y"), ir.Value(name="grad")
    zero = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.zeros((), dtype.numpy())))], name="zero")
    off = ir.Node("", "LessOrEqual", [y, zero.outputs[0]], name="off")
    chosen = ir.Node("", "Where", [off.outputs[0], zero.outputs[0], gradient], name="where")
    for node in (zero, off, chosen):
        node.outputs[0].name = node.name
    suffix = "" if dtype == ir.DataType.FLOAT else dtype.name.capitalize()
    doc = "The gradient where y is above zero (or NaN), zero elsewhere."
    return fused_function.build(f"{NAME}{suffix}", [y, gradient], [zero, off, chosen], [], opset, doc)


RULES = rules_in(globals())
