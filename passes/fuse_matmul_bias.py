"""fuse-matmul-bias: a product of matrices that something is added to is one Gemm."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .dims import same_dim
from .rewriter import Rewriter, inherit
from .rules import Rule, apply_rules

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


@dataclasses.dataclass(frozen=True)
class FuseMatmulBias:
    """Add(MatMul(a, b), c) of matrices becomes Gemm(a, b, c).

    before:  x[N,8] ─ MatMul(·, w[8,4]) ─ Add(·, c[4]) ─ y
    after:   x[N,8] ─ Gemm(·, w, c) ─ y

    Both operands are proved to be matrices of float or double, c to broadcast to the product, and nobody else reads
    that. In half precision the sum would no longer be rounded in between, so those stay. c is added in another order.
    """

    name: ClassVar[str] = "fuse-matmul-bias"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def matmul_bias(node: ir.Node, rw: Rewriter) -> bool:
    """Add(MatMul(a, b), c) → Gemm(a, b, c)."""
    if (rw.opset(node) or 0) < 7:
        return False
    for product, bias in (node.inputs, node.inputs[::-1]):
        matmul = rw.producer(product, "MatMul")
        if matmul is None or product is None or bias is None or matmul.graph is not node.graph:
            continue
        if len(product.uses()) != 1 or product.is_graph_output() or not _matrices(matmul):
            continue
        if not _widens_to(bias, product):
            rw.reject("matmul_bias", "what is added is not proved to broadcast to the product")
            continue
        new = rw.op("Gemm", *matmul.inputs, bias, at=node)
        inherit(new, matmul)
        rw.replace(node, new.outputs[0])
        return True
    return False


def _matrices(node: ir.Node) -> bool:
    return all(
        value is not None and value.dtype in _FLOATS and value.shape is not None and len(value.shape) == 2
        for value in node.inputs
    )


def _widens_to(bias: ir.Value, product: ir.Value) -> bool:
    if bias.shape is None or product.shape is None or len(bias.shape) > 2 or bias.dtype != product.dtype:
        return False
    return all(dim == 1 or same_dim(dim, own) for dim, own in zip(bias.shape[::-1], product.shape[::-1]))


RULES: dict[str, list[Rule]] = {"Add": [matmul_bias]}
