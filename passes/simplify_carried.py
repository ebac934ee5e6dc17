"""simplify-carried: loops carry only what changes and is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import onnx_ir as ir

from .effects import Effect, bodies
from .loops import LoopForm, loop_form
from .rewriter import Rewriter
from .splice import may_replace_outputs


@dataclasses.dataclass(frozen=True)
class SimplifyCarried:
    """Take values out of Loop and Scan that never change, or that nobody reads; and outputs that nobody reads.

    before:  y, z, s = Loop(n, c, x, w, x) { (i, c, a, b, d) → c, Mul(a, b), b, Exp(d) }      (s unread)
    after:   y = Loop(n, c, x) { (i, c, a) → c, Mul(a, w) };  z is w

    What a body reads of its own former value, only to compute the next one, counts as unread.
    """

    name: ClassVar[str] = "simplify-carried"

    def run(self, rw: Rewriter) -> None:
        for graph in list(rw.scopes()):
            for node in list(graph):
                form = loop_form(node, rw) if node.graph is not None else None
                if form is None or rw.is_dead(node):
                    continue
                constant = _constant(form, rw)
                for i in constant:
                    _read_outside(form, i, rw)
                dead = [i for i in _dead(form, rw) if i not in constant]
                if constant or dead:
                    _drop(form, {*constant, *dead}, rw)
                for _ in constant:
                    rw.matched("constant carried value")
                for _ in dead:
                    rw.matched("dead carried value or output")


def _constant(form: LoopForm, rw: Rewriter) -> list[int]:
    """Positions of carried values that the body hands on as they are."""
    found = []
    for i, (initial, formal, following) in enumerate(zip(form.initial, form.formals, form.following)):
        if initial is None or not isinstance(initial.type, ir.TensorType):
            continue
        origin: ir.Value | None = following
        while origin is not None and origin is not formal:
            producer = rw.producer(origin, "Identity")
            origin = producer.inputs[0] if producer is not None else None
        if origin is formal and sum(out is formal for out in form.body.outputs) <= (following is formal):
            found.append(i)
    if found and not may_replace_outputs(form.node, rw):
        why = "before opset 16, a graph output that is a sequence cannot be copied"
        rw.reject("constant carried value", why, form.node)
        return []
    return found


def _read_outside(form: LoopForm, i: int, rw: Rewriter) -> None:
    """Let the body, and who reads the result, read the initial value itself."""
    initial, formal, final = form.initial[i], form.formals[i], form.finals[i]
    assert initial is not None
    for use in list(formal.uses()):
        rw.set_input(use.node, use.idx, initial)
    if not (final.uses() or final.is_graph_output()):
        return
    if not rw.can_replace(final, initial):
        initial = rw.op("Identity", initial, at=form.node).outputs[0]
    rw.replace_value(final, initial)


def _dead(form: LoopForm, rw: Rewriter) -> list[int]:
    """Positions of outputs (of the node) that nobody reads, and whose next value no live output depends on."""
    node, shift = form.node, form.first_output
    live = {i for i, out in enumerate(node.outputs) if out.uses() or out.is_graph_output()}
    kept = [n for n in form.body if rw.effect(n) is Effect.OPAQUE]
    formals = form.formals
    reached: set[ir.Value] = set()
    while True:
        roots = [*list(form.body.outputs)[:shift], *(form.body.outputs[i + shift] for i in live)]
        _reach([*roots, *(v for n in kept for v in _reads(n))], reached)
        more = {i for i, formal in enumerate(formals) if formal in reached} - live
        if not more:
            return [i for i in range(len(node.outputs)) if i not in live]
        live |= more


def _reach(values: Iterable[ir.Value], reached: set[ir.Value]) -> None:
    """Everything that the values depend on, inside the body or out."""
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in reached:
            continue
        reached.add(value)
        producer = value.producer()
        if producer is not None:
            stack.extend(_reads(producer))


def _reads(node: ir.Node) -> list[ir.Value]:
    """Inputs, and what the node's bodies read or hand out."""
    found = [value for value in node.inputs if value is not None]
    for body in bodies(node):
        found.extend(body.outputs)
        for inner in body.all_nodes():
            found.extend(value for value in inner.inputs if value is not None)
    return found


def _drop(form: LoopForm, positions: set[int], rw: Rewriter) -> None:
    """Make the loop anew without these outputs, and without the carried values among them."""
    node, body = form.node, form.body
    carried = [i for i in positions if i < form.carried]
    kept = [i for i in range(len(node.outputs)) if i not in positions]
    for i in sorted(positions, reverse=True):
        rw.drop_output(body, i + form.first_output)
    _sweep(body, rw)
    inputs = list(node.inputs)
    for i in sorted(carried, reverse=True):
        rw.drop_input(body, i + form.first_input)
        del inputs[i + form.first_input]
    if not kept:  # all that it computed is known without it
        rw.erase(node)
        return
    attributes = [_of_kept(attr, form, kept) for attr in node.attributes.values() if attr.name != "body"]
    attributes.append(ir.AttrGraph("body", rw.take_body(node, "body")))
    made = rw.op(node.op_type, *inputs, at=node, outputs=len(kept), attributes=attributes)
    outputs = dict(zip(kept, made.outputs))
    rw.replace(node, *[outputs.get(i) for i in range(len(node.outputs))])


def _of_kept(attr: ir.Attr, form: LoopForm, kept: list[int]) -> ir.Attr:
    """Lists of a Scan with one entry for each collected output."""
    if attr.name not in ("scan_output_axes", "scan_output_directions") or attr.is_ref():
        return attr
    entries = list(attr.as_ints())
    return ir.AttrInt64s(attr.name, [x for j, x in enumerate(entries) if j + form.carried in kept])


def _sweep(body: ir.Graph, rw: Rewriter) -> None:
    """Remove what is dead without the dropped outputs, a cycle through a dropped formal included."""
    for node in reversed(body):
        if node.graph is body and rw.is_dead(node):
            rw.erase(node)
