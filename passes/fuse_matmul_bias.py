"""fuse-matmul-bias: a product of matrices that something is added to is one Gemm."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .dims import same_dim, same_dims
from .matching import either_way
from .matrix_product import product
from .rewriter import Rewriter, inherit
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseMatmulBias:
    """Add(MatMul(a, b), c) of matrices becomes Gemm(a, b, c); so does Add(Gemm(a, b), c) of a row c.

    before:  x[N,8] ─ MatMul(·, w[8,4]) ─ Add(·, c[4]) ─ y
    after:   x[N,8] ─ Gemm(·, w, c) ─ y

    Both operands are proved to be matrices of float or double, c to broadcast to the product, and nobody else reads
    that. In half precision the sum would no longer be rounded in between, so those stay. c is added in another order.
    """

    name: ClassVar[str] = "fuse-matmul-bias"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Add")
def product_and_bias(node: ir.Node, rw: Rewriter) -> bool:
    """Add(MatMul(a, b), c), or Add(Gemm(a, b), c) → Gemm(a, b, c)."""
    for term, bias in either_way(node):
        found = product(term, node, rw, "product_and_bias")
        if found is None:
            continue
        a, b, params = found
        if not _widens_to(bias, term):
            rw.reject("product_and_bias", "what is added is not proved to broadcast to the product")
            continue
        if params and same_dims(bias.shape, term.shape):
            # fuse-optimizer-update sees that better whole
            rw.reject("product_and_bias", "the sum of two matrices may be an optimizer's")
            continue
        new = rw.op("Gemm", a, b, bias, at=node, **params)
        inherit(new, term.producer())  # type: ignore[arg-type] # a product has one
        rw.replace(node, new.outputs[0])
        return True
    return False


def _widens_to(bias: ir.Value, product: ir.Value) -> bool:
    if bias.shape is None or product.shape is None or len(bias.shape) > 2 or bias.dtype != product.dtype:
        return False
    return all(dim == 1 or same_dim(dim, own) for dim, own in zip(bias.shape[::-1], product.shape[::-1]))


RULES = rules_in(globals())
