"""The backend "pfvm" of torch.compile: forward and backward graphs as compiled ONNX, between PyTorch's own autograd.

    fast = torch.compile(model, backend="pfvm", options={"device": "xla:cpu"})

torch.compile hands over graphs of ATen ops that take the weights as inputs; each is captured, compiled and loaded at
its first call, once for every set of input shapes. Where the optimizer should be part of the graph, and the weights
stay on the device, `pfvm.compile` a whole step instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pfvm.compiler.capture.settings import tracing_settings
from pfvm.errors import OptionError, short

from .compiled import CompiledFunction, compile
from .device import Device, parse_device
from .torch_lines import GraphAtLines

Call = Callable[..., Any]


def pfvm(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Call:
    """What torch.compile calls for backend="pfvm".

    options: {"device": "pfvm:cpu"} (see pfvm.devices()) and fields of pfvm.Options, such as {"opt_level": 1}.
    Raises OptionError for other options and for a mode, MissingExtraError and NotBuiltError for the device; at the
    first call CaptureError for an op without a translation.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    if mode is not None:
        raise OptionError(f"backend 'pfvm' has no modes: leave out mode={mode!r}, or set options={{'opt_level': …}}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options of backend 'pfvm' are a dict such as {{'device': 'xla:cpu'}}, not {short(options)}")
    settings = dict(options or {})
    device = parse_device(settings.pop("device", "pfvm:cpu"))
    device.require()

    def compiler(part: torch.fx.GraphModule, _: Sequence[Any]) -> Call:
        return make_boxed_func(_Graph(part, device, settings))

    with tracing_settings():  # no fused attention, which has no ATen parts
        result: Call = aot_autograd(fw_compiler=compiler)(graph, example_inputs)
    return result


class _Graph:
    """One graph of ATen ops, forward or backward; compiled for each set of sizes that it is called with."""

    def __init__(self, graph: torch.fx.GraphModule, device: Device, settings: Mapping[str, Any]) -> None:
        self._graph = graph
        self._device = device
        self._settings = settings
        self._seen = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
        self._compiled: dict[tuple[Any, ...], tuple[Call, list[bool]]] = {}

    def __call__(self, *values: Any) -> list[Any]:
        key = tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in values)
        if key not in self._compiled:
            self._compiled[key] = self._compile(values)
        run, is_tensor = self._compiled[key]
        return list(run(*(v for v, tensor in zip(values, is_tensor) if tensor)))

    def _compile(self, values: Sequence[Any]) -> tuple[Call, list[bool]]:
        """The function of the tensors alone, for these sizes; sizes among the arguments are constants of it."""
        is_tensor = [isinstance(v, torch.Tensor) for v in values]
        lines = GraphAtLines(self._graph)

        def run(*tensors: torch.Tensor) -> tuple[Any, ...]:
            given = iter(tensors)
            return tuple(lines.run(*(next(given) if tensor else v for v, tensor in zip(values, is_tensor))))

        samples = tuple(_like_traced(v, seen) for v, seen in zip(values, self._seen) if isinstance(v, torch.Tensor))
        if not any(isinstance(n, torch.fx.Node) for n in self._graph.graph.output_node().args[0]):  # type: ignore[union-attr]
            return run, is_tensor  # nothing to compute: every gradient is None
        compiled: CompiledFunction = compile(run, samples, device=self._device, options=self._settings, freeze=False)
        return compiled, is_tensor


def _like_traced(value: torch.Tensor, seen: Any) -> torch.Tensor:
    """An empty tensor of the value's sizes, with its dimensions in memory in the order for which the graph was made.

    The values come as they are: a graph in ONNX knows no strides, but the ATen graph may view memory that has them.
    """
    if not isinstance(seen, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype)
    strides = [int(stride) for stride in seen.stride()]
    order = sorted(range(value.dim()), key=lambda axis: (-strides[axis], axis))
    return torch.empty_permuted(value.shape, order, dtype=value.dtype)
