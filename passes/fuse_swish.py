"""fuse-swish: x times its sigmoid is Swish, where it is asked for."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .matching import either_way, keeps_rank, number, only_reader, read_only_by
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseSwish:
    """x · Sigmoid(α x) becomes Swish.

    before:  x ─┬─ Sigmoid ─ Mul ─ y        x ─┬─ Mul 1.702 ─ Sigmoid ─ Mul ─ y
                └────────── ·                  └──────────────────────── ·
    after:   x ─ Swish ─ y                  x ─ Swish(α = 1.702) ─ y

    At opset 24 on, in float, where nobody else reads a step. Runs only where it is named: ONNX Runtime 1.32 has no
    kernel for Swish and computes it in four steps, where it makes one node of what is written out.
    """

    name: ClassVar[str] = "fuse-swish"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Sigmoid")
def swish(node: ir.Node, rw: Rewriter) -> bool:
    """Mul(x, Sigmoid(x)) or Mul(x, Sigmoid(Mul(x, α))) → Swish(x)."""
    inner = node.inputs[0]
    product = only_reader(node.outputs[0])
    if inner is None or inner.dtype != ir.DataType.FLOAT:
        return False
    if product is None or product.op_type != "Mul" or not rw.is_standard(product):
        return rw.reject("swish", "the sigmoid is not only read by one product")
    source = next((x for x, by in either_way(product) if by is node.outputs[0]), None)
    found = _factor(inner, source, rw)
    if source is None or found is None:
        return rw.reject("swish", "the sigmoid is not of what it is multiplied by, or of a multiple")
    if (rw.opset(node) or 0) < 24:
        return rw.reject("swish", "Swish exists from opset 24 on")
    alpha, steps = found
    if not read_only_by([*steps, node, product]):
        return rw.reject("swish", "a step is needed elsewhere")
    if not keeps_rank(source, product, [*steps, node]):
        return rw.reject("swish", "a constant is not proved to leave the number of dims alone")
    rw.replace(product, rw.op("Swish", source, at=product, alpha=alpha).outputs[0])
    return True


def _factor(inner: ir.Value, source: ir.Value | None, rw: Rewriter) -> tuple[float, list[ir.Node]] | None:
    """α where the value is α · source, and the product that it is."""
    if inner is source:
        return 1.0, []
    scaled = rw.producer(inner, "Mul")
    for x, by in either_way(scaled) if scaled is not None else ():
        alpha = number(by)
        if x is source and scaled is not None and alpha is not None and np.isfinite(alpha):
            return alpha, [scaled]
    return None


RULES = rules_in(globals())
