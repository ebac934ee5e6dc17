"""keep-batch-dims: products and transposes of matrices whose leading dims were joined only for them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .dims import same_dims
from .matching import only_reader
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class KeepBatchDims:
    """MatMul and Transpose take any leading dims: joining them before and splitting them after it does nothing.

    before:  a[2,12,5,64] ─ Reshape[24,5,64] ─ MatMul ─ Reshape[2,12,5,5] ─ y
             b[2,12,64,5] ─ Reshape[24,64,5] ─ ·
    after:   a ─ MatMul(·, b) ─ y

    before:  a[2,12,5,64] ─ Reshape[24,5,64] ─ Transpose(0,2,1) ─ Reshape[2,12,64,5] ─ y
    after:   a ─ Transpose(0,1,3,2) ─ y

    Both operands have the same leading dims, which come back after it. Exact.
    """

    name: ClassVar[str] = "keep-batch-dims"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Reshape")
def joined_for_product(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape(MatMul(Reshape(a), Reshape(b))) → MatMul(a, b)."""
    product = rw.producer(node.inputs[0], "MatMul")
    if product is None:
        return False
    joined = [rw.producer(value, "Reshape") for value in product.inputs]
    sources = [each.inputs[0] for each in joined if each is not None]
    if len(sources) != 2 or any(value is None or value.shape is None for value in (*sources, *product.inputs)):
        return False
    a, b = (value.shape for value in sources if value is not None)
    left, right = (value.shape for value in product.inputs if value is not None)
    out, inner = node.outputs[0].shape, product.outputs[0].shape
    assert a is not None and b is not None and left is not None and right is not None
    if out is None or inner is None or min(len(a), len(b), len(left), len(right), len(out)) < 3:
        return False
    if only_reader(product.outputs[0]) is not node:
        return rw.reject("joined_for_product", "the product is needed elsewhere")
    if not (same_dims(a[:-2], b[:-2]) and same_dims(a[:-2], out[:-2]) and same_dims(left[:-2], right[:-2])):
        return rw.reject("joined_for_product", "the batch dims are not proved to be the same")
    if not (same_dims(a[-2:], left[-2:]) and same_dims(b[-2:], right[-2:]) and same_dims(out[-2:], inner[-2:])):
        return rw.reject("joined_for_product", "the dims of the matrices are not proved to stay")
    rw.replace(node, rw.op("MatMul", *sources, at=node).outputs[0])
    return True


@rule("Reshape")
def joined_for_transpose(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape(Transpose(Reshape(a), 0, 2, 1)) → Transpose(a) of the last two dims."""
    turn = rw.producer(node.inputs[0], "Transpose")
    joined = rw.producer(turn.inputs[0], "Reshape") if turn is not None else None
    source = joined.inputs[0] if joined is not None else None
    if turn is None or joined is None or source is None or rw.view(turn).attr("perm") != (0, 2, 1):
        return False
    a, inner, out = source.shape, joined.outputs[0].shape, node.outputs[0].shape
    if a is None or inner is None or out is None or len(a) < 3 or len(a) != len(out):
        return False
    if only_reader(turn.outputs[0]) is not node:
        return rw.reject("joined_for_transpose", "what is transposed is needed elsewhere")
    if not same_dims(a[-2:], inner[-2:]) or not same_dims(out, [*a[:-2], a[-1], a[-2]]):
        return rw.reject("joined_for_transpose", "the dims are not proved to be those of before, the last two turned")
    last = len(a) - 1
    rw.replace(node, rw.op("Transpose", source, at=node, perm=[*range(last - 1), last, last - 1]).outputs[0])
    return True


RULES = rules_in(globals())
