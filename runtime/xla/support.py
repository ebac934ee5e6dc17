"""Finds every operator of a model that has no lowering, before anything is compiled."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import onnx_ir as ir
from pfvm.errors import UnsupportedOpError, describe_node
from pfvm.passes.effects import bodies

from .registry import lookup
from .schema_functions import has_schema_function

_SHOWN = 8


def check_supported(model: ir.Model, device: str, on_host: Container[ir.Node] = (), passes_on: bool = False) -> None:
    """Raises UnsupportedOpError that lists every unsupported operator of the graph, its bodies and the functions.

    on_host: nodes of the main graph that need no lowering. passes_on: inputs and constants that no other node reads may
    be of any type: the host has them, and gives those that are outputs.
    """
    problems: dict[str, list[str]] = {}
    for opsets, nodes in _scopes(model, on_host):
        for node, path in _with_paths(nodes):
            if not _covered(node, opsets, model.functions):
                name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
                problems.setdefault(name, []).append(path)
    if problems:
        shown = "; ".join(_line(name, paths) for name, paths in list(problems.items())[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise UnsupportedOpError(f"{device} has no lowering for: {shown}{more}. See: pfvm ops --device {device}")
    if not passes_on:
        _check_types(model, device)


def _scopes(model: ir.Model, on_host: Container[ir.Node]) -> Iterable[tuple[Mapping[str, int], Iterable[ir.Node]]]:
    nodes = [node for node in model.graph if node not in on_host]
    yield model.graph.opset_imports, nodes
    for function in _called(model, nodes):
        yield function.opset_imports or model.graph.opset_imports, function


def _with_paths(nodes: Iterable[ir.Node], where: str = "") -> Iterable[tuple[ir.Node, str]]:
    """Every node there and in the bodies, with how messages name it."""
    for node in nodes:
        path = describe_node(node) + where
        yield node, path
        for body in bodies(node):
            yield from _with_paths(body, f" in a body of {path}")


def _called(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """The functions that the nodes reach, in the order found."""
    found: dict[tuple[str, str, str], ir.Function] = {}
    pending: list[Iterable[ir.Node]] = [(each for each, _ in _with_paths(nodes))]
    while pending:
        for node in pending.pop():
            key = (node.domain, node.op_type, node.overload)
            if key in model.functions and key not in found:
                found[key] = model.functions[key]
                pending.append(found[key].all_nodes())
    return list(found.values())


def _covered(node: ir.Node, opsets: Mapping[str, int], functions: Mapping) -> bool:
    opset = opsets.get(node.domain, 1)
    return (
        (node.domain, node.op_type, node.overload) in functions
        or lookup(node.domain, node.op_type, opset) is not None
        or has_schema_function(node.domain, node.op_type, opset)
    )


def _line(name: str, paths: list[str]) -> str:
    count = f", {len(paths)} nodes" if len(paths) > 1 else ""
    return f"{name} (first: {paths[0]}{count})"


def _check_types(model: ir.Model, device: str) -> None:
    for value in (*model.graph.inputs, *model.graph.outputs):
        if isinstance(value.type, (ir.SequenceType, ir.OptionalType, ir.SparseTensorType)):
            raise UnsupportedOpError(
                f"{device}: {value.name!r} is a {type(value.type).__name__}, only tensors run there"
            )
        if value.dtype == ir.DataType.STRING:
            raise UnsupportedOpError(f"{device}: {value.name!r} holds strings, which XLA has no type for")
