"""simplify-if: a branch that is always taken stands in the place of its If."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .graph_key import graph_key
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in
from .splice import may_replace_outputs, replace_outputs, splice
from .view import constant


@dataclasses.dataclass(frozen=True)
class SimplifyIf:
    """Inline the branch of an If with a constant condition, or with two equal branches; drop what nobody reads.

    before:  y = If(true) { then: p = Exp(x)   else: q = Neg(x) }      after:  y = Exp(x)
    before:  y = If(c)    { then: p = Exp(x)   else: q = Exp(x) }      after:  y = Exp(x)
    before:  y, unread = If(c) { then: p, r    else: q, s }            after:  y = If(c) { then: p   else: q }

    Two branches are equal only when they are pure: of two that draw numbers only one would draw, but it is another
    node with another seed.
    """

    name: ClassVar[str] = "simplify-if"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def _branches(node: ir.Node) -> tuple[ir.Graph, ir.Graph] | None:
    then, other = node.attributes.get("then_branch"), node.attributes.get("else_branch")
    if then is None or other is None or then.is_ref() or other.is_ref():
        return None
    return then.as_graph(), other.as_graph()


def _inline(node: ir.Node, branch: ir.Graph, rw: Rewriter, rule: str) -> bool:
    if not may_replace_outputs(node, rw):
        return rw.reject(rule, "before opset 16, a graph output that is a sequence cannot be copied")
    replace_outputs(node, splice(branch, node, {}, rw), rw)
    return True


@rule("If")
def constant_condition(node: ir.Node, rw: Rewriter) -> bool:
    """If with a known condition → the nodes of that branch."""
    branches, condition = _branches(node), constant(node.inputs[0])
    if branches is None or condition is None or condition.size != 1:
        return False
    return _inline(node, branches[0 if condition.reshape(-1)[0] else 1], rw, "constant_condition")


@rule("If")
def equal_branches(node: ir.Node, rw: Rewriter) -> bool:
    """If whose branches compute the same → the nodes of one."""
    branches = _branches(node)
    if branches is None:
        return False
    keys = [graph_key(branch, rw) for branch in branches]
    if keys[0] is None or keys[1] is None:
        return rw.reject("equal_branches", "a branch draws numbers, or holds what cannot be compared")
    if keys[0] != keys[1]:
        return False
    return _inline(node, branches[0], rw, "equal_branches")


@rule("If")
def unread_outputs(node: ir.Node, rw: Rewriter) -> bool:
    """If with outputs that nobody reads → If without them."""
    branches, kept = _branches(node), rw.view(node).used_outputs()
    if branches is None or not kept or len(kept) == len(node.outputs):
        return False
    for branch in branches:
        for i in reversed(range(len(node.outputs))):
            if i not in kept:
                rw.drop_output(branch, i)
    graphs = [ir.AttrGraph(name, rw.take_body(node, name)) for name in ("then_branch", "else_branch")]
    made = rw.op("If", *node.inputs, at=node, outputs=len(kept), attributes=graphs)
    outputs = dict(zip(kept, made.outputs, strict=True))
    rw.replace(node, *[outputs.get(i) for i in range(len(node.outputs))])
    return True


RULES = rules_in(globals())
