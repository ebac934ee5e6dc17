"""fuse-transpose-gemm: let Gemm read a transposed matrix in place."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import onnx_ir as ir

from .matrix_product import is_matrix_product
from .merge_reshapes import permutation
from .rewriter import Rewriter
from .rules import MANY_READERS, apply_rules, rule, rules_in
from .view import RUNTIME


@dataclasses.dataclass(frozen=True)
class FuseTransposeGemm:
    """Fold a 2-d Transpose of either operand into Gemm's transA/transB; a 2-d MatMul with one becomes a Gemm.

    before:  W ─ Transpose ─┐                      after:  W ─┐
             x ──────────── Gemm ─ y                       x ─ Gemm(transB=1) ─ y

             x ─ Transpose ─ MatMul(·, g) ─ Transpose ─ z → g ─ Gemm(·, x, transA=1) ─ z

    A MatMul is converted only when its Transpose dies with it, both operands are matrices of float or double, and the
    opset's Gemm can do without C (11 on). A transposed product changes places with its operands where nobody else
    reads it; sums are over the same terms, which a kernel may add up in another order.
    """

    name: ClassVar[str] = "fuse-transpose-gemm"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def _transposed(value: ir.Value | None, rw: Rewriter) -> ir.Value | None:
    """The matrix whose 2-d Transpose `value` is; None when it is not one."""
    transpose = rw.producer(value, "Transpose")
    return transpose.inputs[0] if transpose is not None and permutation(transpose, rw) == [1, 0] else None


@rule("Gemm")
def transpose_into_gemm(node: ir.Node, rw: Rewriter) -> bool:
    """Gemm(Transpose(A), B) → Gemm(A, B, transA flipped), and likewise for B."""
    view = rw.view(node)
    for index, flag in ((0, "transA"), (1, "transB")):
        source, current = _transposed(node.inputs[index], rw), view.attr(flag)
        if source is None or current is RUNTIME:
            continue
        params = {name: view.attr(name) for name in ("alpha", "beta", "transA", "transB")}
        if RUNTIME in params.values():
            return rw.reject("transpose_into_gemm", "an attribute is a parameter of the function")
        operands = list(node.inputs)
        operands[index] = source
        extra = {name: view.attr(name) for name in node.attributes if name not in params}
        fused = rw.op("Gemm", *operands, at=node, **{**params, flag: 1 - current, **extra})
        rw.replace(node, fused.outputs[0])
        return True
    return False


def _dies(transposed: ir.Value, rw: Rewriter) -> bool:
    """Whether every reader is a product of matrices, which will read the matrix itself."""
    uses = transposed.uses()
    if transposed.is_graph_output() or len(uses) > MANY_READERS:
        return False
    return len(uses) == 1 or all(_reads_matrices(use.node, rw) for use in uses)


def _reads_matrices(node: ir.Node, rw: Rewriter) -> bool:
    if node.op_type not in ("Gemm", "MatMul") or not rw.is_standard(node) or (rw.opset(node) or 0) < 11:
        return False
    return node.op_type == "Gemm" or is_matrix_product(node)


@rule("Transpose")
def transposed_product(node: ir.Node, rw: Rewriter) -> bool:
    """Transpose(Gemm(A, B)) → Gemm(B, A) with both flags flipped and changed over; likewise of a MatMul."""
    product = node.inputs[0]
    producer = product.producer() if product is not None else None
    if product is None or producer is None or not _reads_matrices(producer, rw):
        return False
    if _transposed(node.outputs[0], rw) is None or producer.graph is not node.graph:
        return False
    if len(product.uses()) > 1 or product.is_graph_output():
        return rw.reject("transposed_product", "the product is needed elsewhere")
    params: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}
    if producer.op_type == "Gemm":
        view = rw.view(producer)
        if view.at(2) is not None or set(producer.attributes) - {*params, "beta"}:
            return rw.reject("transposed_product", "Gemm adds something")
        params = {name: view.attr(name) for name in params}
        if RUNTIME in params.values():
            return rw.reject("transposed_product", "an attribute is a parameter of the function")
    flipped: dict[str, Any] = {"alpha": params["alpha"], "transA": 1 - params["transB"], "transB": 1 - params["transA"]}
    a, b = producer.inputs[:2]
    fused = rw.op("Gemm", b, a, at=node, **flipped)
    rw.replace(node, fused.outputs[0])
    return True


@rule("MatMul")
def transpose_into_matmul(node: ir.Node, rw: Rewriter) -> bool:
    """MatMul(A, Transpose(B)) of matrices → Gemm(A, B, transB=1), and likewise for A."""
    sources = [_transposed(value, rw) for value in node.inputs]
    if not any(sources):
        return False
    if (rw.opset(node) or 0) < 11:
        return rw.reject("transpose_into_matmul", "Gemm needs C at this opset")
    if not is_matrix_product(node):
        return rw.reject("transpose_into_matmul", "not two matrices of float or double")
    operands = [
        source if source is not None and value is not None and _dies(value, rw) else value
        for value, source in zip(node.inputs, sources)
    ]
    if all(a is b for a, b in zip(operands, node.inputs)):
        return rw.reject("transpose_into_matmul", "the Transpose is needed elsewhere")
    flags = [int(a is not b) for a, b in zip(operands, node.inputs)]
    fused = rw.op("Gemm", *operands, at=node, transA=flags[0], transB=flags[1])
    rw.replace(node, fused.outputs[0])
    return True


RULES = rules_in(globals())
