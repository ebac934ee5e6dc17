"""fuse-gelu: the products that an exporter writes for Gelu."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import onnx_ir as ir

from .matching import either_way, is_number, keeps_rank, only_reader, product_is, read_only_by
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in

_CUBIC = 0.044715
"""Of the approximation by tanh: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016."""


@dataclasses.dataclass(frozen=True)
class FuseGelu:
    """x · ½ · (1 + erf(x / √2)), or its approximation by tanh, becomes Gelu.

    before:  x ─┬─ Div √2 ─ Erf ─ Add 1 ─ Mul ─ Mul ½ ─ y          x ─┬─ Mul 0.0447 x² ─ Add ─ Mul √(2/π) ─ Tanh … ─ y
                └──────────────────────── ·                           └─ …
    after:   x ─ Gelu ─ y                                          x ─ Gelu(tanh) ─ y

    At opset 20 on, in float, for the factors in any order, where nobody else reads a step. The constants must be those
    numbers as exactly as float says them. In half precision every step is rounded, which Gelu does not do: those stay.
    """

    name: ClassVar[str] = "fuse-gelu"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Erf", "Tanh")
def gelu(node: ir.Node, rw: Rewriter) -> bool:
    """The product that holds Erf(x / √2) or Tanh(…) → Gelu(x). The root is that inner node."""
    found = find_gelu(node, rw, "gelu")
    if found is None:
        return False
    if (rw.opset(node) or 0) < 20:
        return rw.reject("gelu", "Gelu exists from opset 20 on")
    last, source = found
    approximate = "tanh" if node.op_type == "Tanh" else "none"
    rw.replace(last, rw.op("Gelu", source, at=last, approximate=approximate).outputs[0])
    return True


def find_gelu(node: ir.Node, rw: Rewriter, name: str) -> tuple[ir.Node, ir.Value] | None:
    """The last node of the Gelu around this Erf or Tanh, and its x; None where there is none to fuse."""
    if node.outputs[0].dtype != ir.DataType.FLOAT or node.inputs[0] is None:
        return None
    inside: list[ir.Node] = []
    source = (_under_erf if node.op_type == "Erf" else _under_tanh)(node.inputs[0], rw, inside)
    if source is None:
        return None
    last = _around(node, source, rw, inside)
    if last is None:
        rw.reject(name, "what follows is not x · ½ · (1 + …), or is read in between")
        return None
    if not read_only_by([*dict.fromkeys([node, *inside]), last]):
        rw.reject(name, "a step is needed elsewhere")
        return None
    if not keeps_rank(source, last, [node, *inside]):
        rw.reject(name, "a constant is not proved to leave the number of dims alone")
        return None
    return last, source


def _under_erf(value: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> ir.Value | None:
    """x of x / √2 or x · √½."""
    node = value.producer()
    if node is None or not rw.is_standard(node) or node.op_type not in ("Div", "Mul"):
        return None
    nodes.append(node)
    if node.op_type == "Div":
        return node.inputs[0] if is_number(node.inputs[1], math.sqrt(2)) else None
    return next((x for x, by in either_way(node) if is_number(by, math.sqrt(0.5))), None)


def _under_tanh(value: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> ir.Value | None:
    """x of √(2/π) · (x + 0.044715 x³), or of √(2/π) · x · (1 + 0.044715 x²)."""
    root = math.sqrt(2 / math.pi)
    for source, total in _sums_in_product(value, rw):
        own = [total]
        for first, second in either_way(total):
            if first is source and product_is(second, rw, [_CUBIC, source, source, source], own):
                wanted: list[ir.Value | float] = [root, total.outputs[0]]
            elif is_number(first, 1.0) and product_is(second, rw, [_CUBIC, source, source], own):
                wanted = [root, total.outputs[0], source]
            else:
                continue
            if product_is(value, rw, wanted, own):
                nodes.extend(own)
                return source
    return None


def _sums_in_product(value: ir.Value, rw: Rewriter) -> list[tuple[ir.Value, ir.Node]]:
    """Candidates for x, each with the sum that the product holds."""
    found: list[tuple[ir.Value, ir.Node]] = []
    product = value.producer()
    if product is None or product.op_type != "Mul":
        return found
    operands = [v for v in product.inputs if v is not None]
    for operand in list(operands):
        inner = rw.producer(operand, "Mul")
        operands.extend(v for v in (inner.inputs if inner is not None else ()) if v is not None)
    for operand in operands:
        total = rw.producer(operand, "Add")
        if total is not None:
            candidates = [v for v in (*total.inputs, *operands) if v is not None and v.const_value is None]
            found.extend((v, total) for v in dict.fromkeys(candidates))
    return found


def _around(node: ir.Node, source: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> ir.Node | None:
    """The node that computes x · ½ · (1 + f) from f: the outermost Mul or Div; appends the nodes before it."""
    step = only_reader(node.outputs[0])
    if step is None or not rw.is_standard(step):
        return None
    half: list[ir.Value | float] = [0.5]
    if step.op_type == "Mul" and any(is_number(by, 0.5) for _, by in either_way(step)):  # ½ + ½ f
        nodes.append(step)
        step, half = only_reader(step.outputs[0]), []
    shift = 1.0 if half else 0.5
    if step is None or step.op_type != "Add" or not rw.is_standard(step):
        return None
    if not any(is_number(by, shift) for _, by in either_way(step)):
        return None
    wanted: list[ir.Value | float] = [step.outputs[0], source, *half]
    nodes.append(step)
    for _ in range(2):
        step = only_reader(step.outputs[0])
        if step is None or not rw.is_standard(step) or step.op_type not in ("Mul", "Div"):
            return None
        own: list[ir.Node] = []
        if step.op_type == "Div":
            if not half or step.inputs[0] is None or not is_number(step.inputs[1], 2.0):
                return None
            if product_is(step.inputs[0], rw, [each for each in wanted if each != 0.5], own):
                nodes.extend(own)
                return step
        elif product_is(step.outputs[0], rw, wanted, own):
            nodes.extend(each for each in own if each is not step)
            return step
        nodes.append(step)
    return None


RULES = rules_in(globals())
