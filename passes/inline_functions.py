"""inline-functions: put the body of a one-node function in the place of its call."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from . import schema
from .effects import callees_first
from .rewriter import SEALED_DOMAIN, Rewriter, inherit
from .view import constant_tensor

_RULE = "inlined call"


@dataclasses.dataclass(frozen=True)
class InlineFunctions:
    """Inline calls of model-local functions whose body is one node; ours (domain pfvm) never.

    before:  x ─ my::Square ─ y      Square(a) { b = Mul(a, a) }
    after:   x ─ Mul(x, x) ── y

    A function of several nodes is kept: every pass works inside it as well.
    """

    name: ClassVar[str] = "inline-functions"

    def run(self, rw: Rewriter) -> None:
        functions = [rw.model.functions[identifier].graph for identifier in callees_first(rw.model)]
        # What a function calls is inlined in it first, so that no call is followed twice.
        for root in [*functions, rw.model.graph]:
            for graph in [root, *root.subgraphs()]:
                for node in list(graph):
                    _inline(node, rw)


def _inline(call: ir.Node, rw: Rewriter) -> None:
    """Replace a call by the body's one node."""
    function = rw.model.functions.get(call.op_identifier())
    if function is None or function.domain == SEALED_DOMAIN:
        return
    if len(function) != 1:
        rw.reject(_RULE, "its body is not a single node, and every pass works inside it as well", call)
        return
    if call.domain in schema.STANDARD_DOMAINS and schema.find(call.domain, call.op_type, rw.opset(call) or 0):
        rw.reject(_RULE, "an operator has this name, and ONNX Runtime takes the operator", call)
        return
    body = function[0]
    reason = _obstacle(body, function, call, rw)
    if reason:
        rw.reject(_RULE, reason, call)
        return
    if body.op_type == "Constant" and rw.is_standard(body):
        _inline_constant(body, call, rw)
        return
    formal = dict(zip(function.inputs, [*call.inputs, *[None] * len(function.inputs)]))
    attributes = _bind(body, function, call)
    if attributes is None:
        rw.reject(_RULE, "the call hands on a parameter of the enclosing function", call)
        return
    assert call.graph is not None
    rw.root(call.graph).opset_imports.setdefault(body.domain, function.opset_imports.get(body.domain, 1))
    node = rw.op(
        body.op_type,
        *[None if v is None else formal[v] for v in body.inputs],
        at=call,
        domain=body.domain,
        outputs=len(body.outputs),
        overload=body.overload,
        attributes=attributes,
    )
    inherit(node, body)
    rw.provenance.copied(node, call, body)
    for old, new in zip(body.outputs, node.outputs):
        if not old.name:
            new.name = ""
    position = {value: i for i, value in enumerate(body.outputs)}
    rw.replace(call, *[node.outputs[position[out]] for out in list(function.outputs)[: len(call.outputs)]])
    rw.matched(_RULE)


def _obstacle(body: ir.Node, function: ir.Function, call: ir.Node, rw: Rewriter) -> str:
    """Why the body cannot stand in the place of the call; empty when it can."""
    if body.op_identifier() == function.identifier():
        return "the function calls itself"
    if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in body.attributes.values()):
        return "the body holds a graph"
    if any(out not in body.outputs for out in function.outputs) or len(set(function.outputs)) < len(function.outputs):
        return "an output is an input handed on, or another output"
    if not _same_operator(body, function, call, rw):
        return "the operator differs between the two scopes' opsets"
    return ""


def _inline_constant(body: ir.Node, call: ir.Node, rw: Rewriter) -> None:
    tensor, out = constant_tensor(body.outputs[0]), call.outputs[0]
    if tensor is None or out.is_graph_output():
        rw.reject(_RULE, "a constant cannot take the call's place", call)
        return
    rw.replace(call, rw.constant(tensor.numpy(), str(out.name), call))
    rw.matched(_RULE)


def _same_operator(body: ir.Node, function: ir.Function, call: ir.Node, rw: Rewriter) -> bool:
    """Whether the call's scope would read the body's operator as the function does."""
    inside, outside = function.opset_imports.get(body.domain), rw.opset(call, body.domain)
    if outside is None or inside == outside:
        return True
    ours, theirs = (schema.find(body.domain, body.op_type, v or 1) for v in (inside, outside))
    return ours is not None and theirs is not None and ours.since_version == theirs.since_version


def _bind(body: ir.Node, function: ir.Function, call: ir.Node) -> list[ir.Attr] | None:
    """The body's attributes with references resolved from the call, else from the function's defaults."""
    bound = []
    for name, attr in body.attributes.items():
        if attr.is_ref():
            assert attr.ref_attr_name is not None
            given = call.attributes.get(attr.ref_attr_name)
            default = function.attributes.get(attr.ref_attr_name)
            if given is None and default is not None and default.value is None:
                continue  # declared, without a default, not given: the operator's own default holds
            source = given or default
            if source is None:
                continue
            if source.is_ref():
                return None
            attr = ir.Attr(name, source.type, source.value)
        bound.append(attr)
    return bound
