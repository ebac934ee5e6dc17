"""fuse-gemm-sum: what is added to a product of matrices is where Gemm starts to add up."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import onnx_ir as ir

from .dims import same_dims, static_shape
from .rewriter import Rewriter
from .rules import Rule, apply_rules
from .view import RUNTIME, constant_tensor

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


@dataclasses.dataclass(frozen=True)
class FuseGemmSum:
    """The sum of two products is one Gemm after another; a weight plus a scaled product (plain SGD) is one Gemm.

    before:  Gemm(g1, x1) ─┐                     Gemm(g, x) ─ Mul(·, −lr) ─┐
             Gemm(g2, x2) ─ Add ─ g              w ─────────────────────── Add ─ w.new
    after:   Gemm(g1, x1) ─ Gemm(g2, x2, ·) ─ g  g ─ Mul(·, −lr) ─ Gemm(·, x, w) ─ w.new

    The scale, a number known only at run time, is applied to the smaller operand, where that is smaller than the
    product; w must be an input of the graph. The terms are the same but are scaled before they are added up, and C is
    added in another order: results differ by rounding. It is assumed that no scaled element overflows.
    """

    name: ClassVar[str] = "fuse-gemm-sum"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def sum_of_products(node: ir.Node, rw: Rewriter) -> bool:
    """Add(Gemm(a, b), Gemm(c, d)) → Gemm(a, b, Gemm(c, d))."""
    for product, other in (node.inputs[::-1], node.inputs):
        found = _product(product, node, rw)
        if found is None or other is None or not same_dims(other.shape, node.outputs[0].shape):
            continue
        if rw.producer(other, "Gemm") is None and not _is_matrix_product(rw.producer(other, "MatMul")):
            continue
        a, b, params = found
        rw.replace(node, rw.op("Gemm", a, b, other, at=node, **params).outputs[0])
        return True
    return False


def plus_scaled_product(node: ir.Node, rw: Rewriter) -> bool:
    """Add(w, Mul(Gemm(a, b), s)) → Gemm(Mul(a, s), b, w), and Sub likewise with alpha negative."""
    for scaled, weight in (node.inputs[::-1], node.inputs) if node.op_type == "Add" else (node.inputs[::-1],):
        mul = rw.producer(scaled, "Mul")
        if mul is None or weight is None or not weight.is_graph_input() or not _read_once(scaled, node):
            continue
        if not same_dims(weight.shape, node.outputs[0].shape):
            continue
        for product, scale in (mul.inputs, mul.inputs[::-1]):
            found = _product(product, node, rw)
            if found is None or scale is None or not _is_number(scale):
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


def _size(value: ir.Value) -> float:
    shape = static_shape(value)
    return math.inf if shape is None else math.prod(shape)


def _is_number(scale: ir.Value) -> bool:
    """A single number that is not constant, of a rank that does not widen a matrix."""
    shape = static_shape(scale)
    return shape is not None and len(shape) <= 2 and math.prod(shape) == 1 and constant_tensor(scale) is None


def _read_once(value: ir.Value | None, reader: ir.Node) -> bool:
    producer = value.producer() if value is not None else None
    if value is None or producer is None or producer.graph is not reader.graph:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()


def _is_matrix_product(node: ir.Node | None) -> bool:
    """A MatMul of two matrices of float or double, which is a Gemm."""
    return node is not None and all(
        value is not None and value.dtype in _FLOATS and value.shape is not None and len(value.shape) == 2
        for value in node.inputs
    )


def _product(value: ir.Value | None, reader: ir.Node, rw: Rewriter) -> tuple[ir.Value, ir.Value, dict[str, Any]] | None:
    """Operands and attributes of the Gemm without C, or the MatMul of matrices, that only `reader` needs."""
    if not _read_once(value, reader):
        return None
    node = rw.producer(value, "Gemm") or rw.producer(value, "MatMul")
    if node is None or (rw.opset(node) or 0) < 7:  # before 7, C broadcasts by an attribute
        return None
    a, b = node.inputs[:2]
    if a is None or b is None:
        return None
    if node.op_type == "MatMul":
        return (a, b, {}) if _is_matrix_product(node) else None
    view = rw.view(node)
    params = {name: view.attr(name) for name in ("alpha", "transA", "transB")}
    if view.at(2) is not None or RUNTIME in params.values() or set(node.attributes) - {*params, "beta"}:
        return None
    return a, b, params


RULES: dict[str, list[Rule]] = {"Add": [sum_of_products, plus_scaled_product], "Sub": [plus_scaled_product]}
