"""The backward pass: from the loss to the parameters, one gradient rule a node, nodes in reverse order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import onnx_ir as ir
from pfvm.errors import UnsupportedOpError, describe_node, flag
from pfvm.passes.effects import bodies
from pfvm.passes.view import View

from .builder import FIX_SHAPES, Builder, UnknownRank
from .registry import ForwardNode, Gradients, NotCovered, Rule, lookup

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

# Rounding to integers: the derivative is zero almost everywhere, and training through it would silently do nothing.
_ROUNDED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM"})
_QUANTIZED = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT16, ir.DataType.UINT16})


class NodeGradient(Protocol):
    """The gradient of any node, by other means than a rule of `rules/`."""

    def __call__(
        self, b: Builder, node: ir.Node, wanted: Sequence[ir.Value], gradients: Mapping[ir.Value, ir.Value]
    ) -> Gradients:
        """Write the gradient of each value of `wanted`, which the node or a body of it reads.

        gradients: those of the node's outputs.

        Raises UnsupportedOpError that names the node.
        """


def backward(
    b: Builder, loss: ir.Value, parameters: Sequence[ir.Value], general: NodeGradient | None
) -> dict[ir.Value, ir.Value]:
    """Write the backward pass; returns parameter → gradient, without the parameters that the loss does not depend on.

    loss: a float scalar of the main graph (any number of axes of size 1).
    Raises UnsupportedOpError that names the forward node where an operator has no derivative.
    """
    nodes = list(b.model.graph)
    depends = _depending_on(nodes, parameters)
    partial: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    partial[loss].append(b.fill(b.shape(loss), 1, loss))
    opset = b.model.opset_imports.get("", 0)
    for node in reversed(nodes):
        gradients = {out: _total(b, node, partial.pop(out)) for out in node.outputs if out in partial}
        if not gradients:
            continue
        wanted = [v for v in reads(node) if v in depends]
        if not wanted:
            continue
        with b.at(node):
            for value, gradient in zip(wanted, _of_node(b, View(node, opset), wanted, gradients, general)):
                if gradient is not None:
                    partial[value].append(gradient)
    return {p: _total(b, None, partial[p]) for p in parameters if p in partial}


def reads(node: ir.Node) -> list[ir.Value]:
    """What the node reads, each value once: inputs, and values of outer graphs that its bodies read."""
    found = dict.fromkeys(v for v in node.inputs if v is not None)
    for body in bodies(node):
        own = {*body.inputs, *body.initializers.values(), *(out for inner in body.all_nodes() for out in inner.outputs)}
        own.update(v for graph in body.subgraphs() for v in (*graph.inputs, *graph.initializers.values()))
        for inner in body.all_nodes():
            found.update(dict.fromkeys(v for v in inner.inputs if v is not None and v not in own))
    return list(found)


def _depending_on(nodes: Iterable[ir.Node], parameters: Iterable[ir.Value]) -> set[ir.Value]:
    """The float values that depend on a parameter, and the quantized ones, at which the derivative ends."""
    found = set(parameters)
    for node in nodes:
        read = [value for value in reads(node) if value in found]
        if not read:
            continue
        rounded = node.op_type in _ROUNDED or (
            node.op_type not in ("Shape", "Size") and any(value.dtype in _QUANTIZED for value in read)
        )
        found.update(out for out in node.outputs if rounded or out.dtype is None or out.dtype in FLOATS)
    return found


def _total(b: Builder, node: ir.Node | None, parts: list[ir.Value]) -> ir.Value:
    if len(parts) == 1:
        return parts[0]
    if node is None:
        return b.op("Sum", *parts)
    with b.at(node):
        return b.op("Sum", *parts)


def _of_node(
    b: Builder,
    view: View,
    wanted: list[ir.Value],
    gradients: dict[ir.Value, ir.Value],
    general: NodeGradient | None,
) -> Gradients:
    node = view.node
    ended = next((v for v in wanted if v.dtype not in FLOATS and v.dtype is not None), None)
    if node.op_type in _ROUNDED or ended is not None:
        source = node if ended is None else ended.producer()
        assert source is not None
        raise UnsupportedOpError(
            f"{describe_node(source)} rounds to integers and has no derivative; the loss depends on "
            f"{(reads(source) or wanted)[0].name!r} through it: freeze the parameters before it, by {flag('freeze')}, "
            "or train the unquantized model"
        )
    rule = lookup(node.op_type) if node.domain == "" else None
    if rule is not None:
        before = list(b.model.graph)[-1] if len(b.model.graph) else None
        try:
            return _by_rule(b, rule, view, wanted, gradients)
        except NotCovered:
            _drop_after(b.model.graph, before)
        except UnknownRank as error:
            raise UnsupportedOpError(
                f"{describe_node(node)}: the rank of {error.value.name!r} is not known, and its gradient needs it; "
                + FIX_SHAPES
            ) from error
    if general is None:
        raise UnsupportedOpError(f"{describe_node(node)} has no gradient rule")
    return general(b, node, wanted, gradients)


def _by_rule(
    b: Builder, rule: Rule, view: View, wanted: list[ir.Value], gradients: dict[ir.Value, ir.Value]
) -> Gradients:
    node = view.node
    first = gradients.get(node.outputs[0])
    if node.op_type != "Split" and (first is None or len(gradients) > 1):
        raise NotCovered
    forward = ForwardNode(node, view, frozenset(wanted), gradients)
    found = rule(b, forward, first if first is not None else next(iter(gradients.values())))
    per_input = [found] if isinstance(found, ir.Value) or found is None else list(found)
    by_value: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    for value, gradient in zip(node.inputs, per_input):
        if value is not None and gradient is not None:
            by_value[value].append(gradient)
    return [_total(b, node, by_value[v]) if by_value[v] else None for v in wanted]


def _drop_after(graph: ir.Graph, last: ir.Node | None) -> None:
    """Remove what a rule wrote before it found that it does not cover the node."""
    for node in reversed(list(graph)):
        if node is last:
            return
        if not any(out.uses() for out in node.outputs):
            graph.remove(node, safe=True)
