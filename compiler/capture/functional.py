"""Second pass: in-place updates of locals become new values; updates that would leave the function are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from pfvm.errors import CaptureError
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from .decompose import DECOMPOSITIONS
from .source import origin_of_node

aten = torch.ops.aten


def make_functional(
    graph: torch.fx.GraphModule, mode: FakeTensorMode, names: Sequence[str], input_count: int, is_dynamic: bool
) -> torch.fx.GraphModule:
    """The graph without in-place ops; itself where it has none. `names` are those of the placeholders, inputs first."""
    if not any(_is_mutation(n) for n in graph.graph.nodes):
        return graph
    placeholders = graph.graph.find_nodes(op="placeholder")

    def interpret(*args: Any) -> tuple[Any, ...]:
        with fx_traceback.preserve_node_meta():
            return torch.fx.Interpreter(graph).run(*args)

    # With symbolic sizes the C++ kernels of functionalization need torch's Python dispatcher.
    dispatcher = enable_python_dispatcher() if is_dynamic else contextlib.nullcontext()
    with torch.no_grad(), mode, dispatcher:
        args = [torch.empty_strided(v.size(), v.stride(), dtype=v.dtype) for v in (n.meta["val"] for n in placeholders)]
        result = make_fx(
            torch.func.functionalize(interpret, remove="mutations"),
            DECOMPOSITIONS,
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*args)
    _check(graph, result, names, input_count)
    return result


def _is_mutation(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _check(
    original: torch.fx.GraphModule, functional: torch.fx.GraphModule, names: Sequence[str], input_count: int
) -> None:
    """Functionalization ends with a copy_ onto every placeholder that the function changed in place."""
    placeholders = functional.graph.find_nodes(op="placeholder")
    for node in functional.graph.nodes:
        if not _is_mutation(node):
            continue
        if node.target is not aten.copy_.default or node.args[0] not in placeholders:
            source = origin_of_node(node).where
            raise CaptureError(f"{source}: in-place op {node.target} cannot be captured; write its out-of-place form")
        index = placeholders.index(node.args[0])
        source = _first_write(original, original.graph.find_nodes(op="placeholder")[index])
        if index < input_count:
            raise CaptureError(
                f"{source}: input {names[index]!r} is changed in place, which the caller of a compiled function would "
                "not see; work on a copy (x = x.clone()) or write x = x + 1 in place of x += 1"
            )
        raise CaptureError(
            f"{source}: {names[index]!r} is changed in place; capture of training steps, which update state, is not "
            "built yet: call model.eval() before, or return the new value as an output"
        )


def _first_write(graph: torch.fx.GraphModule, placeholder: torch.fx.Node) -> str:
    """The source line of the first in-place op on this placeholder's memory."""
    memory = placeholder.meta["val"].untyped_storage()._cdata
    for node in graph.graph.nodes:
        if _is_mutation(node):
            seen = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None
            if isinstance(seen, torch.Tensor) and seen.untyped_storage()._cdata == memory:
                return origin_of_node(node).where
    return "<unknown>"
