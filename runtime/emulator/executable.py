"""`mncore2:emu`: a model planned for a machine and run on its emulator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler import progress
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.runtime.executable import TensorSpec, check_feeds, representation, specs_of

from .program import Program

Array = np.ndarray
Planner = Callable[[ir.Model, Mapping[str, Any]], Plan]

_announced = False


def announce(device: str) -> None:
    """Says once a process that no board is at work."""
    global _announced
    if not _announced:
        _announced = True
        progress.remark(f"{device} is emulated: the planned graph runs in numpy, at no board's speed")


class EmulatorExecutable:
    """A model on the emulator. It is planned when loaded; one with open shapes for each set of input shapes it meets.

    exact: no rounding: every float is float64. plan_options: the fields of PlanOptions: machine, scheduler,
    float_dtype, sram_budget, … Raises OptionError, UnsupportedOpError for what cannot be planned or computed, and
    EmulatorError for a plan that is wrong.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        device: str = "mncore2:emu",
        exact: bool = False,
        planner: Planner = plan,
        **plan_options: Any,
    ) -> None:
        announce(device)
        self.device = device
        self.exact = exact
        self.inputs, self.optional_inputs, self.outputs = specs_of(model)
        self._model, self._planner, self._options = model, planner, plan_options
        self._loaded: dict[tuple[Any, ...], Loaded] = {}
        self._lock = threading.Lock()
        self._required = {spec.name for spec in self.inputs}
        if all(spec.is_fixed for spec in self.inputs):
            self.loaded({})

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Feeds and results by name, as the Executable protocol says; calls from several threads take turns.

        Raises InputError; EmulatorError where the plan turns out to be wrong.
        """
        values = check_feeds(self.inputs, self.optional_inputs, feeds)
        with self._lock:
            return self.loaded(values).call(values)

    def __repr__(self) -> str:
        return representation(self.device, self.inputs, self.outputs)

    @property
    def lock(self) -> threading.Lock:
        """Who runs it holds this."""
        return self._lock

    def loaded(self, values: Mapping[str, Array]) -> Loaded:
        """The program for the shapes of these values of the inputs, planned where it is the first time."""
        open_shapes = {
            spec.name: tuple(values[spec.name].shape)
            for spec in self.inputs
            if spec.name in values and not spec.is_fixed
        }
        key = tuple(open_shapes.items())
        if key not in self._loaded:
            options = {**self._options, "shapes": {**self._options.get("shapes", {}), **open_shapes}}
            planned = self._planner(self._model, options)
            self._loaded[key] = Loaded(planned, self.exact, self._required, self.outputs)
        return self._loaded[key]

    @property
    def plans(self) -> list[Plan]:
        """Those made so far, one for each set of input shapes."""
        return [loaded.plan for loaded in self._loaded.values()]

    @property
    def machine(self) -> Machine:
        """The machine of the first plan."""
        return self.plans[0].machine


class Loaded:
    """One plan with its memories, between calls. Weights stay in DRAM; a call writes those again that it is given."""

    def __init__(self, planned: Plan, exact: bool, required: set[str], outputs: tuple[TensorSpec, ...]) -> None:
        self.plan = planned
        self.program = Program(planned.model, planned.machine, exact)
        self.program.place_weights()
        self._outputs = outputs
        initializers = planned.model.graph.initializers
        self._defaults = {
            name: value for name, value in initializers.items() if name in self.program.inputs and name not in required
        }
        self._changed: set[str] = set()

    def call(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """One run: outputs by name, at their ONNX types."""
        self.put(values)
        self.program.run()
        return {spec.name: self.get(spec.name) for spec in self._outputs}

    def put(self, values: Mapping[str, Array], kept: Collection[str] = ()) -> None:
        """Writes inputs to DRAM; weights that are not given are what the model says, but for those in `kept`."""
        for name in self._changed - set(values) - set(kept):
            self.program.put(name, self._defaults[name].const_value.numpy())  # type: ignore[union-attr]
        for name, value in values.items():
            self.program.put(name, value)
        self._changed = {name for name in self._defaults if name in values or name in kept}
        self._changed |= self.program.overwritten & set(self._defaults)

    def restored(self, name: str, image: Array) -> Array:
        """An input whose memory a failed call wrote over, from the copy of it, at its ONNX type."""
        self.program.restore(name, image)
        held = self.program.inputs[name]
        return as_onnx(held.load("the host"), held.value.dtype)

    def get(self, name: str) -> Array:
        """An output, at its ONNX type."""
        return as_onnx(self.program.get(name), self.program.outputs[name].value.dtype)


def as_onnx(x: Array, dtype: ir.DataType | None) -> Array:
    """A device's numbers at an ONNX type; what does not fit a narrower float is infinite."""
    assert dtype is not None
    with np.errstate(over="ignore"):
        return x.astype(dtype.numpy())
