"""replace-einsum: an Einsum that is a product of matrices, or a permutation, is written as such."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .dims import Dim, same_dim
from .dtypes import FLOATS
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in

_NUMBERS = FLOATS | {ir.DataType.INT32, ir.DataType.INT64}


@dataclasses.dataclass(frozen=True)
class ReplaceEinsum:
    """Write an Einsum as MatMul, Gemm or Transpose, where one of these is the whole of it.

    before:  Einsum("bij,bjk->bik", a, b) or ("bij,jk->bik", a, b)   Einsum("ij,kj->ik", a, b)   Einsum("ijk->kij", a)
    after:   MatMul(a, b)                                            Gemm(a, b, transB)          Transpose(a, perm)

    An Einsum repeats dims of size 1, so the dims that two operands share are proved to be equal.
    """

    name: ClassVar[str] = "replace-einsum"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Einsum")
def einsum(node: ir.Node, rw: Rewriter) -> bool:
    """Einsum → MatMul, Gemm or Transpose."""
    equation = rw.view(node).attr("equation")
    found = terms_of(equation) if isinstance(equation, str) else None
    operands = [value for value in node.inputs if value is not None and value.dtype in _NUMBERS]
    if len(operands) != len(node.inputs):
        return rw.reject("einsum", "an operand is of a type that MatMul does not take everywhere")
    terms, result = found or ([], "")
    if len(terms) != len(operands) or any(len(set(term)) < len(term) for term in [*terms, result]):
        return rw.reject("einsum", "the equation has an ellipsis, or a letter twice in one term")
    if not _agree(terms, operands):
        return rw.reject("einsum", "dims of one letter are not proved to be equal")
    new = _permutation(node, terms, result, rw) if len(terms) == 1 else _product(node, terms, result, rw)
    if new is None:
        return rw.reject("einsum", "the equation is no MatMul, Gemm or Transpose")
    rw.replace(node, new.outputs[0])
    return True


def terms_of(equation: str) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result; None for a form with an ellipsis."""
    if "." in equation:
        return None
    left, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    return left.split(","), result


def _agree(terms: list[str], operands: list[ir.Value]) -> bool:
    sizes: dict[str, Dim] = {}
    for term, value in zip(terms, operands):
        if value.shape is None or len(value.shape) != len(term):
            return False
        for letter, dim in zip(term, value.shape):
            known = sizes.setdefault(letter, dim)
            if known is not dim and not same_dim(known, dim):
                return False
    return True


def _permutation(node: ir.Node, terms: list[str], result: str, rw: Rewriter) -> ir.Node | None:
    if sorted(terms[0]) != sorted(result):
        return None
    return rw.op("Transpose", node.inputs[0], at=node, perm=[terms[0].index(letter) for letter in result])


def _product(node: ir.Node, terms: list[str], result: str, rw: Rewriter) -> ir.Node | None:
    """One letter is summed over; each operand has one of its own, behind all the others or the last of them."""
    if len(terms) != 2 or len(result) < 2:
        return None
    a, b = terms
    shared, i, j = result[:-2], result[-2], result[-1]
    (k, *others) = [letter for letter in a if letter in b and letter not in result] or [""]
    if not k or others:
        return None
    first, second = node.inputs[:2]
    if i in b:
        (a, b), (first, second) = (b, a), (second, first)
    leading = a[:-2], b[:-2]
    if (a[-2:], b[-2:]) == (i + k, k + j) and shared in leading and all(map(shared.endswith, leading)):
        return rw.op("MatMul", first, second, at=node)
    if shared or node.outputs[0].dtype not in FLOATS:
        return None
    if set(a) != {i, k} or set(b) != {k, j}:
        return None
    return rw.op("Gemm", first, second, at=node, transA=int(a[0] == k), transB=int(b[0] == j))


RULES = rules_in(globals())
