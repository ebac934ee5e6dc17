"""Second pass: in-place updates become new values, of locals and of state; those of inputs are refused."""

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
from .in_place import NotWhole, fresh, is_mutation, without_updates
from .source import origin_of_node

aten = torch.ops.aten


def make_functional(
    graph: torch.fx.GraphModule, mode: FakeTensorMode, names: Sequence[str], input_count: int, is_dynamic: bool
) -> tuple[torch.fx.GraphModule, dict[int, torch.fx.Node]]:
    """The graph without in-place ops (itself where it has none), and the new value of each state that it wrote to.

    `names` are those of the placeholders, inputs first; the new values are keyed by position behind the inputs.
    """
    if not any(is_mutation(n) for n in graph.graph.nodes):
        return graph, {}
    placeholders = graph.graph.find_nodes(op="placeholder")
    if not is_dynamic:
        try:
            new = without_updates(graph, mode, placeholders[:input_count])
            return graph, {i - input_count: new[n] for i, n in enumerate(placeholders) if n in new}
        except NotWhole:
            pass  # functionalization, which traces all of it again, knows views of memory too

    def interpret(*args: Any) -> tuple[Any, ...]:
        with fx_traceback.preserve_node_meta():
            return torch.fx.Interpreter(graph).run(*args)

    # With symbolic sizes the C++ kernels of functionalization need torch's Python dispatcher.
    dispatcher = enable_python_dispatcher() if is_dynamic else contextlib.nullcontext()
    mode.allow_scalar_outputs = True  # an optimizer's step count, which the first pass let through
    with torch.no_grad(), mode, dispatcher:
        args = [fresh(n.meta["val"]) for n in placeholders]
        result = make_fx(
            torch.func.functionalize(interpret, remove="mutations"),
            DECOMPOSITIONS,
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*args)
    return result, _take_writes(graph, result, names, input_count)


def _take_writes(
    original: torch.fx.GraphModule, functional: torch.fx.GraphModule, names: Sequence[str], input_count: int
) -> dict[int, torch.fx.Node]:
    """Functionalization ends with a copy_ onto every placeholder that the function changed in place: take them out."""
    placeholders = {n: i for i, n in enumerate(functional.graph.find_nodes(op="placeholder"))}
    written: dict[int, torch.fx.Node] = {}
    for node in list(functional.graph.nodes):
        if not is_mutation(node):
            continue
        target = node.args[0]
        if node.target is not aten.copy_.default or target not in placeholders:
            source = origin_of_node(node).where
            raise CaptureError(f"{source}: in-place op {node.target} cannot be captured; write its out-of-place form")
        index = placeholders[target]
        if index < input_count:
            source = _first_write(original, original.graph.find_nodes(op="placeholder")[index])
            raise CaptureError(f"{source}: {changed_in_place(names[index])}")
        written[index - input_count] = node.args[1]
        node.replace_all_uses_with(node.args[1])
        functional.graph.erase_node(node)
    return written


def changed_in_place(name: str) -> str:
    """What is wrong with a write to an input."""
    return (
        f"input {name!r} is changed in place, which the caller of a compiled function would not see; work on a copy "
        "(x = x.clone()) or write x = x + 1 in place of x += 1"
    )


def _first_write(graph: torch.fx.GraphModule, placeholder: torch.fx.Node) -> str:
    """The source line of the first in-place op on this placeholder's memory."""
    memory = placeholder.meta["val"].untyped_storage()._cdata
    for node in graph.graph.nodes:
        if is_mutation(node):
            seen = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else None
            if isinstance(seen, torch.Tensor) and seen.untyped_storage()._cdata == memory:
                return origin_of_node(node).where
    return "<unknown>"
