"""fuse-gemm-sum: what is added to a product of matrices is where Gemm starts to add up."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import same_dims, static_shape
from .matching import either_way
from .matrix_product import is_matrix_product, product, read_once
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in
from .view import constant, constant_tensor


@dataclasses.dataclass(frozen=True)
class FuseGemmSum:
    """The sum of two products is one Gemm after another; a weight plus a scaled product (plain SGD) is one Gemm.

    before:  Gemm(g1, x1) ─┐                     Gemm(g, x) ─ Mul(·, −lr) ─┐
             Gemm(g2, x2) ─ Add ─ g              w ─────────────────────── Add ─ w.new
    after:   Gemm(g1, x1) ─ Gemm(g2, x2, ·) ─ g  g ─ Mul(·, −lr) ─ Gemm(·, x, w) ─ w.new

    A constant scale becomes alpha. One that is only known at run time is applied to the smaller operand, where that is
    smaller than the product. w must be an input of the graph. The terms are the same but are scaled before they are
    added up, and C is added in another order: results differ by rounding. It is assumed that no scaled element
    overflows.
    """

    name: ClassVar[str] = "fuse-gemm-sum"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Add")
def sum_of_products(node: ir.Node, rw: Rewriter) -> bool:
    """Add(Gemm(a, b), Gemm(c, d)) → Gemm(a, b, Gemm(c, d))."""
    for other, term in either_way(node):
        if rw.producer(other, "Gemm") is None and not is_matrix_product(rw.producer(other, "MatMul")):
            continue
        found = product(term, node, rw, "sum_of_products")
        if found is None:
            continue
        if not same_dims(other.shape, node.outputs[0].shape):
            rw.reject("sum_of_products", "the two products are not proved to have one shape")
            continue
        a, b, params = found
        rw.replace(node, rw.op("Gemm", a, b, other, at=node, **params).outputs[0])
        return True
    return False


@rule("Add", "Sub")
def plus_scaled_product(node: ir.Node, rw: Rewriter) -> bool:
    """Add(w, Mul(Gemm(a, b), s)) → Gemm(Mul(a, s), b, w), and Sub likewise with alpha negative."""
    for weight, scaled in either_way(node):
        mul = rw.producer(scaled, "Mul")
        if mul is None or not weight.is_graph_input() or not read_once(scaled, node):
            continue
        if not same_dims(weight.shape, node.outputs[0].shape):
            continue
        for term, scale in either_way(mul):
            if not _is_number(scale):
                continue
            found = product(term, node, rw, "plus_scaled_product")
            if found is None:
                continue
            a, b, params = found
            sizes = [_size(a), _size(b), _size(node.outputs[0])]
            if min(sizes) == sizes[2]:
                return rw.reject("plus_scaled_product", "no operand is known to be smaller than the product")
            smaller = 0 if sizes[0] <= sizes[1] else 1
            operands = [a, b]
            operands[smaller] = rw.op("Mul", operands[smaller], scale, at=node).outputs[0]
            params["alpha"] = params.get("alpha", 1.0) * (-1 if node.op_type == "Sub" else 1)
            rw.replace(node, rw.op("Gemm", *operands, weight, at=node, **params).outputs[0])
            return True
    return False


@rule("Mul")
def scaled_product(node: ir.Node, rw: Rewriter) -> bool:
    """Mul(Gemm(a, b), number) → Gemm(a, b, alpha), for a constant that float32 holds."""
    for term, by in either_way(node):
        number = constant(by)
        if number is None or number.size != 1 or number.ndim > 2:
            continue
        found = product(term, node, rw, "scaled_product")
        if found is None:
            continue
        a, b, params = found
        scale = params.get("alpha", 1.0) * float(number.reshape(()))
        if not np.isfinite(scale) or float(np.float32(scale)) != scale:
            return rw.reject("scaled_product", "alpha is a float32, which does not hold this number")
        if (rw.opset(node) or 0) < 11:
            return rw.reject("scaled_product", "Gemm needs C at this opset")
        if scale == 0:
            return rw.reject("scaled_product", "with alpha 0, runtimes leave out the product, and what is NaN in it")
        rw.replace(node, rw.op("Gemm", a, b, at=node, **{**params, "alpha": scale}).outputs[0])
        return True
    return False


@rule("Add", "Sub")
def plus_product(node: ir.Node, rw: Rewriter) -> bool:
    """Sub(w, Gemm(a, b)) → Gemm(a, b, w) with alpha negative, and Add likewise where alpha is not 1."""
    for weight, term in either_way(node):
        if not weight.is_graph_input() or not same_dims(weight.shape, node.outputs[0].shape):
            continue
        found = product(term, node, rw, "plus_product")
        if found is None:
            continue
        a, b, params = found
        alpha = params.get("alpha", 1.0)
        if node.op_type == "Add" and alpha == 1:
            continue
        params["alpha"] = alpha if node.op_type == "Add" else -alpha
        rw.replace(node, rw.op("Gemm", a, b, weight, at=node, **params).outputs[0])
        return True
    return False


def _size(value: ir.Value) -> float:
    shape = static_shape(value)
    return math.inf if shape is None else math.prod(shape)


def _is_number(scale: ir.Value) -> bool:
    """A single number that is not constant, of a rank that does not widen a matrix."""
    shape = static_shape(scale)
    return shape is not None and len(shape) <= 2 and math.prod(shape) == 1 and constant_tensor(scale) is None


RULES = rules_in(globals())
