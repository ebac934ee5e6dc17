"""XlaExecutable: an ONNX model compiled by XLA, once for each set of input shapes that it is called with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from pfvm.errors import NotBuiltError
from pfvm.runtime.executable import check_feeds, specs_of

from .compiled import SegmentRunner
from .interpreter import Interpreter
from .schema_functions import SchemaFunctions
from .segments import cut
from .support import check_supported
from .weights import Weights


class XlaExecutable:
    """Runs a model on an XLA platform; implements `pfvm.runtime.executable.Executable`.

    Every set of input shapes (and of values of shape-like inputs) is compiled once and kept; `max_compilations` bounds
    their number. Safe to call from several threads. Raises UnsupportedOpError at load time for operators without a
    lowering.
    """

    def __init__(self, model: ir.Model, platform: str = "cpu", max_compilations: int = 64) -> None:
        if platform != "cpu":
            raise NotBuiltError(f"device xla:{platform} is not built yet; use xla:cpu")
        device_name = f"xla:{platform}"
        check_supported(model, device_name)
        self._weights = Weights(model)
        self.inputs, optional, self.outputs = specs_of(model)
        overridable = {v.name for v in self._weights.state}
        self.optional_inputs = tuple(spec for spec in optional if spec.name in overridable)
        self._device = jax.devices(platform)[0]
        self._graph_inputs = {v.name: v for v in model.graph.inputs}
        self._graph_outputs = tuple(model.graph.outputs)
        schema_functions = SchemaFunctions()

        def interpreter(arguments: Mapping[ir.Value, Any], forced: set[ir.Value]) -> Interpreter:
            return Interpreter(model.functions, schema_functions, self._weights, arguments, forced)

        self._runners = [
            SegmentRunner(segment, model, self._weights, interpreter, self._device, device_name, max_compilations)
            for segment in cut(model.graph, self._weights)
        ]
        with jax.enable_x64(True):
            for value in self._weights.arguments():
                self._weights.on_device(value, self._device)

    @property
    def compilations(self) -> int:
        """How many executables have been compiled so far."""
        return sum(runner.compilations for runner in self._runners)

    def hlo(self) -> list[str]:
        """XLA's optimized program text, one for each executable compiled so far."""
        return [text for runner in self._runners for text in runner.hlo()]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        checked = check_feeds(self.inputs, self.optional_inputs, feeds)
        env: dict[ir.Value, Any] = {self._graph_inputs[name]: array for name, array in checked.items()}
        with jax.enable_x64(True):
            for runner in self._runners:
                env.update(runner(env))
            # A copy: XLA may return an input's own buffer, and its arrays are read-only.
            return {value.name or "": np.array(env[value]) for value in self._graph_outputs}
