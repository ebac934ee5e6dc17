"""fuse-transpose-gemm: let Gemm read a transposed matrix in place."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .rewriter import Rewriter
from .rules import Rule, apply_rules
from .view import RUNTIME

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


@dataclasses.dataclass(frozen=True)
class FuseTransposeGemm:
    """Fold a 2-d Transpose of either operand into Gemm's transA/transB; a 2-d MatMul with one becomes a Gemm.

    before:  W ─ Transpose ─┐             after:  W ─┐
             x ──────────── Gemm ─ y              x ─ Gemm(transB=1) ─ y

    A MatMul is converted only when its Transpose dies with it, both operands are matrices of float or double, and the
    opset's Gemm can do without C (11 on).
    """

    name: ClassVar[str] = "fuse-transpose-gemm"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def _transposed(value: ir.Value | None, rw: Rewriter) -> ir.Value | None:
    """The matrix whose 2-d Transpose `value` is; None when it is not one."""
    producer = rw.producer(value, "Transpose")
    if producer is None:
        return None
    source, perm = producer.inputs[0], rw.view(producer).attr("perm")
    if perm is RUNTIME or source is None:
        return None
    if perm is None:
        return source if source.shape is not None and len(source.shape) == 2 else None
    return source if tuple(perm) == (1, 0) else None


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


def transpose_into_matmul(node: ir.Node, rw: Rewriter) -> bool:
    """MatMul(A, Transpose(B)) of matrices → Gemm(A, B, transB=1), and likewise for A."""
    sources = [_transposed(value, rw) for value in node.inputs]
    if not any(sources):
        return False
    if (rw.opset(node) or 0) < 11:
        return rw.reject("transpose_into_matmul", "Gemm needs C at this opset")
    operands = []
    for value, source in zip(node.inputs, sources):
        assert value is not None
        if value.dtype not in _FLOATS or value.shape is None or len(value.shape) != 2:
            return rw.reject("transpose_into_matmul", "not two matrices of float or double")
        if source is not None and (len(value.uses()) > 1 or value.is_graph_output()):
            source = None
        operands.append(source or value)
    if all(a is b for a, b in zip(operands, node.inputs)):
        return rw.reject("transpose_into_matmul", "the Transpose is needed elsewhere")
    flags = [int(a is not b) for a, b in zip(operands, node.inputs)]
    fused = rw.op("Gemm", *operands, at=node, transA=flags[0], transB=flags[1])
    rw.replace(node, fused.outputs[0])
    return True


RULES: dict[str, list[Rule]] = {"Gemm": [transpose_into_gemm], "MatMul": [transpose_into_matmul]}
