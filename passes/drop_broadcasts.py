"""drop-broadcasts: let elementwise operators broadcast by themselves."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from . import uniform
from .dims import same_dims
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class DropBroadcasts:
    """An Expand, or a constant of equal numbers, beside an operand of the result's shape becomes what it repeats.

    before:  s[1] ─ Expand[8,16] ─┐              after:  s[1] ────┐
             g[8,16] ──────────── Mul ─ y                g[8,16] ─ Mul ─ y

             ConstantOfShape[8,16](−1) ─ Mul(·, g) → −1 ─ Mul(·, g)

    Every value is kept: the result's shape is proved to be that of the other operand.
    """

    name: ClassVar[str] = "drop-broadcasts"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


_ELEMENTWISE = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "And", "Or", "Xor", "Mod", "BitwiseAnd", "BitwiseOr"),
    *("BitwiseXor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
)


@rule(*_ELEMENTWISE)
def narrower_operand(node: ir.Node, rw: Rewriter) -> bool:
    """op(x, Expand(s)) → op(x, s); op(x, constant of equal numbers) → op(x, number)."""
    if (rw.opset(node) or 0) < 8 or not 2 <= len(node.inputs) <= 3:  # 8: Max, Min and Expand broadcast
        return False
    shape = node.outputs[0].shape
    full = [value is not None and same_dims(value.shape, shape) for value in node.inputs]
    for i, value in enumerate(node.inputs):
        expand = rw.producer(value, "Expand")
        if value is None or not any(full[:i] + full[i + 1 :]):
            if expand is not None:
                rw.reject("narrower_operand", "no other operand is proved to have the shape of the result")
            continue
        source = expand.inputs[0] if expand is not None else _number(value, full[i], node, rw)
        if source is None:
            continue
        if source.shape is None or shape is None or len(source.shape) > len(shape):
            rw.reject("narrower_operand", "what is expanded has no known rank, or a higher one")
            continue
        rw.set_input(node, i, source)
        return True
    return False


def _number(value: ir.Value, full: bool, node: ir.Node, rw: Rewriter) -> ir.Value | None:
    """A scalar that stands for a tensor of equal numbers that has the whole shape of the result.

    A vector of equal numbers stays: runtimes fuse a bias or a scale that has one number for each channel.
    """
    if not full or value.shape is None or len(value.shape) < 2:
        return None
    number = uniform.value(value, rw)
    return None if number is None else rw.constant(number, f"{value.name}_scalar", node)


RULES = rules_in(globals())
