"""One call of a PyTorch function beside its compiled graph: the same inputs and state, and what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .compiled import compile
from .torch_state import as_array


class TorchCase(NamedTuple):
    """model: the compiled graph. feeds: its inputs, state included. outputs: PyTorch's results, new state included."""

    model: ir.Model
    feeds: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def torch_case(function: Callable[..., Any], example: Any) -> TorchCase:
    """Compiles the function and calls it eagerly once, which changes the state that it updates. Raises CaptureError."""
    compiled = compile(function, example)
    signature, graph = compiled.signature, compiled.model.graph
    positional = example if isinstance(example, tuple) else (example,)
    given = signature.inputs.unpack(positional, signature.argument_names)
    feeds = {name: np.array(as_array(name, value)) for name, value in given.items()}
    for value in graph.inputs:  # copies: the defaults may share the memory of live tensors
        if value.name in graph.initializers and value.name not in feeds:
            feeds[str(value.name)] = np.array(value.const_value.numpy())  # type: ignore[union-attr]
    results = signature.outputs.unpack(function(*positional))
    outputs = {name: np.array(as_array(name, value.detach())) for name, value in results.items()}
    for state, output in signature.updates.items():
        if state in signature.states:
            reached = signature.states[state]
            tensor = reached.tensor if reached.place is None else reached.place.get()
            outputs[output] = np.array(as_array(state, tensor.detach()))
    return TorchCase(compiled.model, feeds, outputs)
