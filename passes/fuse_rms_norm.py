"""fuse-rms-norm: a division by the root mean square is RMSNormalization."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .fuse_layer_norm import root_mean_square_norm
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseRmsNorm:
    """x / √(mean(x²) + ε) · scale becomes RMSNormalization.

    before:  x ─┬─ Pow 2 ─ ReduceMean ─ Add ε ─ Sqrt ─ Reciprocal ─ Mul ─ Mul scale ─ y
                └───────────────────────────────────────────────── ·
    after:   x ─ RMSNormalization(·, scale) ─ y

    At opset 23 on; what is matched, and what stays outside, is as in fuse-layer-norm.
    """

    name: ClassVar[str] = "fuse-rms-norm"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Div", "Mul")
def rms_norm(node: ir.Node, rw: Rewriter) -> bool:
    """The quotient of a value by its own root mean square, with its scale → RMSNormalization."""
    return (rw.opset(node) or 0) >= 23 and root_mean_square_norm(node, "RMSNormalization", rw)


RULES = rules_in(globals())
