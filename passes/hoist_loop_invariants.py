"""hoist-loop-invariants: compute once what every iteration computes alike."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from .dims import static_shape
from .effects import Effect, bodies
from .loops import LoopForm, loop_form, runs_steps, trip_count
from .rewriter import Rewriter
from .splice import copy_node, own_tensor
from .view import constant_tensor


@dataclasses.dataclass(frozen=True)
class HoistLoopInvariants:
    """Move pure nodes of a Loop or Scan body that read only outer values in front of the loop.

    before:  y = Loop(n, c, x) { (i, c, a) → c, Add(a, Exp(w)) }      after:  e = Exp(w);  y = Loop(…) { … Add(a, e) }

    A body that may not run at all must not fail because of what moved: then only operators move that cannot fail.
    """

    name: ClassVar[str] = "hoist-loop-invariants"

    def run(self, rw: Rewriter) -> None:
        for graph in reversed(list(rw.scopes())):  # inner loops first: what leaves one may leave the next
            for node in list(graph):
                form = loop_form(node, rw)
                if form is None:
                    continue
                if runs_steps(node):
                    rw.reject(_RULE, "a training step is computed as it is alone, bit for bit", node)
                else:
                    _hoist(form, rw)


_RULE = "loop invariant"
_UNARY = """Abs Neg Exp Sigmoid Tanh Relu Erf Cos Sin Softplus LeakyRelu Elu Floor Ceil Round Not Identity Transpose
Shape Size Sqrt Log Reciprocal"""
_TOTAL = frozenset(_UNARY.split())
_BROADCASTING_OPS = "Add Sub Mul MatMul And Or Xor Less Greater Equal Where Max Min Sum"
_BROADCASTING = frozenset(_BROADCASTING_OPS.split())


def _hoist(form: LoopForm, rw: Rewriter) -> None:
    trips = trip_count(form, rw)
    for node in list(form.body):
        if not _invariant(node, form.body):
            continue
        if not (why := _obstacle(node, trips or 0, rw)):
            _move(node, form, rw)
            rw.matched(_RULE)
        else:
            rw.reject(_RULE, why, node)


def _invariant(node: ir.Node, body: ir.Graph) -> bool:
    values = [value for value in node.inputs if value is not None]
    if all(constant_tensor(value) is not None for value in values):
        return False  # folding's, or too large to store
    return all(_outer(value, body) for value in values)


def _obstacle(node: ir.Node, trips: int, rw: Rewriter) -> str:
    """Why a node that computes the same every time cannot move; empty when it can."""
    if rw.effect(node) is not Effect.PURE:
        return "it draws numbers, or nobody described it"
    if bodies(node):
        return "it has a body of its own"
    if any(out.is_graph_output() for out in node.outputs):
        return "the body hands it out"
    if not trips and not _cannot_fail(node, rw):
        return "it might fail, and the body may not run at all"
    return ""


def _outer(value: ir.Value, body: ir.Graph) -> bool:
    """A value from outside, or a constant of the body, which may be made one outside."""
    return value.graph is not body or constant_tensor(value) is not None


def _cannot_fail(node: ir.Node, rw: Rewriter) -> bool:
    if not rw.is_standard(node):
        return False
    if node.op_type in _TOTAL:
        return True
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return node.op_type in _BROADCASTING and all(static_shape(value) is not None for value in values)


def _move(node: ir.Node, form: LoopForm, rw: Rewriter) -> None:
    for i, value in enumerate(node.inputs):
        tensor = constant_tensor(value)
        if value is not None and value.graph is form.body and tensor is not None:
            rw.set_input(node, i, rw.constant(own_tensor(tensor), str(value.name), form.node))
    moved = copy_node(node, node.inputs, node.attributes.values(), form.node, rw)
    moved.metadata_props.clear()
    moved.metadata_props.update(node.metadata_props)
    rw.replace(node, *moved.outputs)
