"""Which nodes of the model an instruction of a compiled program comes from.

XLA keeps the names of the scopes in which a program was traced in the metadata of its instructions (op_name), whatever
it fuses, splits or moves. While `named` is open, what a node is lowered to stands in a scope of the node's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, unquote

import jax
import onnx_ir as ir
from pfvm.passes import provenance

from .hlo import Instruction, Module

_SCOPE = "of:"
_IN_SCOPE = re.compile(rf"{_SCOPE}([\w.~%-]+)")  # what `quote` leaves
_named: ContextVar[bool] = ContextVar("named", default=False)


@contextmanager
def named() -> Iterator[None]:
    """Programs that are traced meanwhile name their nodes, and none comes from the cache: its names may be others."""
    token = _named.set(True)
    try:
        yield
    finally:
        _named.reset(token)


def are_named() -> bool:
    """Whether a program that is traced now names its nodes."""
    return _named.get()


def scope_of(node: ir.Node) -> AbstractContextManager[Any]:
    """Where a node is to be lowered. It is known by its first output, which no other node has."""
    if not are_named():
        return nullcontext()
    name = next((out.name for out in node.outputs if out.name), None)
    return nullcontext() if name is None else jax.named_scope(_SCOPE + quote(name, safe=""))


def origins_of(each: Instruction, module: Module) -> list[str]:
    """First outputs of the nodes that an instruction comes from; of a fusion its result's first, then the others'."""
    inside = module.computations.get(each.called("calls") or "", {})
    found: dict[str, None] = {}
    for instruction in (each, *inside.values()):
        scopes = _IN_SCOPE.findall(instruction.attributes.get("metadata", ""))
        if scopes:  # bodies stand in the scope of their loop: the innermost
            found[unquote(scopes[-1])] = None
    return list(found)


def complete(scheduled: ir.Graph, model: ir.Model) -> None:
    """Adds what the model says of the nodes that a schedule's come from: their own origins, and Python lines.

    A name of no node of the model goes.
    """
    known: Mapping[str, ir.Node] = {out.name or "": node for node in model.graph.all_nodes() for out in node.outputs}
    for node in scheduled.all_nodes():
        named = provenance.names(node.metadata_props.pop(provenance.FROM, None))
        origins = {name: known[name] for name in named if name in known}
        older = [n for each in origins.values() for n in provenance.names(each.metadata_props.get(provenance.FROM))]
        if origins:
            provenance.label(node, [*origins, *older])
        for each in origins.values():
            for key, text in provenance.location(each).items():
                node.metadata_props.setdefault(key, text)
