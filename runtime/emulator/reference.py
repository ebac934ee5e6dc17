"""The same plan of dtypes on plain tensors: no layouts, no addresses. The emulator must give the same, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.placement import placement_of

from .arithmetic import Arithmetic
from .calls import call_of
from .kernels import given, kernel_of
from .tail import plain

Array = np.ndarray
Observer = Callable[[ir.Node, list[Array]], None]


class Reference:
    """Runs a planned model node by node; each result is rounded to the dtype that the plan gives it."""

    def __init__(self, model: ir.Model, machine: Machine, exact: bool = False) -> None:
        self.model = model
        self.arithmetic = Arithmetic(machine, exact)
        self._kernels = []
        for node in model.graph:
            call = call_of(node, model.functions, model.opset_imports)
            dtypes = [None if value is None else placement_of(value).dtype for value in node.inputs]
            self._kernels.append((node, kernel_of(call, self.arithmetic, dtypes)))

    def __call__(self, feeds: Mapping[str, Array], observer: Observer | None = None) -> dict[str, Array]:
        """Outputs by name, as float64, int64 or bool. Initializers that are not fed have their stored values."""
        values: dict[ir.Value | None, Array | None] = {None: None}
        for value in self.model.graph.initializers.values():
            if value.name not in feeds:
                values[value] = self._kept(value, plain(value.const_value.numpy()))  # type: ignore[union-attr]
        for value in self.model.graph.inputs:
            if value.name in feeds:
                values[value] = self._kept(value, plain(feeds[str(value.name)]))
        for node, kernel in self._kernels:
            results = kernel([values[value] for value in node.inputs])
            kept = [self._kept(out, result) for out, result in zip(node.outputs, results) if out.name]
            values.update(zip((out for out in node.outputs if out.name), kept))
            if observer is not None:
                observer(node, kept)
        return {str(value.name): given(values[value]) for value in self.model.graph.outputs}

    def _kept(self, value: ir.Value, x: Array) -> Array:
        # In one piece of memory, as the emulator loads values: the order of numpy's sums depends on it.
        return np.asarray(self.arithmetic.store(x, placement_of(value).dtype, value.dtype), order="C")
