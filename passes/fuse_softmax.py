"""fuse-softmax: the exponentials over their sum."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .dtypes import FLOATS
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseSoftmax:
    """Exp(x − max) / ReduceSum(Exp(x − max)) becomes Softmax.

    before:  x ─ ReduceMax ─ Sub(x, ·) ─ Exp ─┬─ ReduceSum ─┐
                                              └──────────── Div ─ y
    after:   x ─ Softmax ─ y

    Along one axis whose dim is kept, at opset 13 on, in float and double, where nobody else reads a step. Without the
    maximum the exponentials overflow where Softmax does not, so that form stays.
    """

    name: ClassVar[str] = "fuse-softmax"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Div")
def softmax(node: ir.Node, rw: Rewriter) -> bool:
    """Div(Exp(Sub(x, ReduceMax(x))), ReduceSum(Exp(…))) → Softmax(x)."""
    powers, total = node.inputs
    exp, addition = rw.producer(powers, "Exp"), rw.producer(total, "ReduceSum")
    if exp is None or addition is None or addition.inputs[0] is not powers:
        return False
    if (rw.opset(node) or 0) < 13:
        return rw.reject("softmax", "before opset 13, Softmax flattens")
    difference = rw.producer(exp.inputs[0], "Sub")
    largest = rw.producer(difference.inputs[1], "ReduceMax") if difference is not None else None
    if difference is None or largest is None or largest.inputs[0] is not difference.inputs[0]:
        return rw.reject("softmax", "the maximum is not subtracted")
    source = difference.inputs[0]
    if source is None or source.shape is None or source.dtype not in FLOATS:
        return rw.reject("softmax", "not float or double of known rank")
    rank = len(source.shape)
    axes = [_axis(each, rank, rw) for each in (addition, largest)]
    if axes[0] is None or axes[0] != axes[1]:
        return rw.reject("softmax", "not along one axis that is kept")
    readers = {exp.outputs[0]: 2, addition.outputs[0]: 1, difference.outputs[0]: 1, largest.outputs[0]: 1}
    if any(len(value.uses()) != count or value.is_graph_output() for value, count in readers.items()):
        return rw.reject("softmax", "a step is needed elsewhere")
    rw.replace(node, rw.op("Softmax", source, at=node, axis=axes[0]).outputs[0])
    return True


def _axis(node: ir.Node, rank: int, rw: Rewriter) -> int | None:
    view = rw.view(node)
    axes = view.ints("axes")
    if view.attr("keepdims") != 1 or not isinstance(axes, tuple) or len(axes) != 1 or not rank:
        return None
    return axes[0] % rank


RULES = rules_in(globals())
