"""fuse-hard-swish: x times its hard sigmoid."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .matching import either_way, is_number, keeps_rank, only_reader, product_is, read_only_by
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseHardSwish:
    """x · HardSigmoid(x), or x · Clip(x + 3, 0, 6) / 6, becomes HardSwish.

    before:  x ─┬─ Add 3 ─ Clip 0 6 ─ Mul ─ Div 6 ─ y     x ─┬─ HardSigmoid(⅙, ½) ─ Mul ─ y
                └──────────────────── ·                      └───────────────────── ·
    after:   x ─ HardSwish ─ y                            x ─ HardSwish ─ y

    In float, from opset 14 on.
    """

    name: ClassVar[str] = "fuse-hard-swish"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("HardSigmoid")
def hard_swish(node: ir.Node, rw: Rewriter) -> bool:
    """x · HardSigmoid(x; ⅙, ½) → HardSwish(x)."""
    view, source = rw.view(node), node.inputs[0]
    if view.opset < 14 or source is None or source.dtype != ir.DataType.FLOAT:
        return False
    alpha, beta = view.attr("alpha"), view.attr("beta")
    if not isinstance(alpha, float) or np.float32(alpha) != np.float32(1 / 6) or beta != 0.5:
        return False
    product = only_reader(node.outputs[0])
    if product is None or product.op_type != "Mul" or not rw.is_standard(product):
        return rw.reject("hard_swish", "the result is not only read by one product")
    if not any(x is source for x, by in either_way(product) if by is node.outputs[0]):
        return False
    rw.replace(product, rw.op("HardSwish", source, at=product).outputs[0])
    return True


@rule("Clip")
def clipped_swish(node: ir.Node, rw: Rewriter) -> bool:
    """x · Clip(x + 3, 0, 6) / 6 → HardSwish(x)."""
    view = rw.view(node)
    shifted = rw.producer(node.inputs[0], "Add")
    if view.opset < 14 or shifted is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    if not is_number(view.input("min"), 0.0) or not is_number(view.input("max"), 6.0):
        return False
    source = next((x for x, by in either_way(shifted) if is_number(by, 3.0)), None)
    if source is None:
        return False
    inside, step = [shifted, node], node
    for _ in range(2):
        reader = only_reader(step.outputs[0])
        if reader is None or not rw.is_standard(reader) or reader.op_type not in ("Mul", "Div"):
            return False
        step = reader
        own: list[ir.Node] = []
        if step.op_type == "Div":
            top = step.inputs[0]
            done = top is not None and is_number(step.inputs[1], 6.0)
            done = done and top is not None and product_is(top, rw, [source, node.outputs[0]], own)
        else:
            done = product_is(step.outputs[0], rw, [source, node.outputs[0], 1 / 6], own)
        if done:
            inside.extend(each for each in own if each is not step)
            if not read_only_by([*dict.fromkeys(inside), step]):
                return rw.reject("clipped_swish", "a step is needed elsewhere")
            if not keeps_rank(source, step, inside):
                return rw.reject("clipped_swish", "a constant is not proved to leave the number of dims alone")
            rw.replace(step, rw.op("HardSwish", source, at=step).outputs[0])
            return True
        inside.append(step)
    return False


RULES = rules_in(globals())
