"""Runs a portable program (see `pfvm.runtime.portable`): StableHLO that was exported, compiled here for this device."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import numpy as np
from pfvm.errors import InputError, InvalidModelError, PfvmError
from pfvm.runtime.executable import check_feeds, representation
from pfvm.runtime.portable import PortableProgram

from .own_settings import own_settings
from .platforms import device_of
from .random_keys import fresh_entropy
from .range_checks import RangeChecks
from .weights import put, unbound


class PortableExecutable:
    """Implements `pfvm.runtime.executable.Executable`; `optional_inputs` are the state, else that of the folder.

    A training step is run by `step`, which keeps the state on the device and donates its memory, or by calls that are
    given the state as inputs and return the new one. XLA compiles once for each set of input shapes.
    """

    def __init__(self, program: PortableProgram, platform: str) -> None:
        """Raises NoDeviceError, and InvalidModelError for a program that this jax does not read."""
        self._device = device_of(platform)
        self._name = f"xla:{platform}"
        if platform not in program.platforms:
            raise InvalidModelError(f"the program was exported for {', '.join(program.platforms)}, not for {platform}")
        try:
            exported = jax.export.deserialize(bytearray(program.serialized))
        except Exception as error:
            raise InvalidModelError(
                f"this jax ({jax.__version__}) cannot read the program: {str(error).splitlines()[0]}; programs are "
                "read for 6 months after they were made, by jax no more than 3 weeks older"
            ) from error
        self._program = program
        self.inputs = program.inputs
        self.optional_inputs = tuple(state.spec for state in program.state)
        self.outputs = program.outputs
        self.updates = {state.spec.name: state.output for state in program.state if state.output is not None}
        positions = tuple(i for i, name in enumerate(program.arguments) if name in program.donated)
        self._call = jax.jit(exported.call)
        self._donating = jax.jit(exported.call, donate_argnums=positions)
        self._checks = RangeChecks(messages=program.checks)
        self._lock = threading.Lock()
        self._arrays: dict[str, jax.Array] = {}
        self._state: dict[str, jax.Array] = {}

    def __repr__(self) -> str:
        return representation(self._name, self.inputs, self.outputs)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run once. State that is not given is that of the folder, in every call."""
        given = check_feeds(self.inputs, self.optional_inputs, feeds)
        with own_settings():
            results, finding = self._run(self._call, {**self._weights(), **given})
            if finding is not None:
                self._checks.judge(finding)
            return {name: np.array(value) for name, value in results.items()}

    def step(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run once on the state that the last step left, and return the outputs that are no state.

        `feeds` may give state that no output updates, a learning rate say, for this step. A step that raises InputError
        leaves the state as it was.
        """
        given = check_feeds(self.inputs, [s for s in self.optional_inputs if s.name not in self.updates], feeds)
        with own_settings(), self._lock:
            self._begin()
            results, finding = self._run(self._donating, {**self._weights(), **self._state, **given})
            self._state.update({name: results[output] for name, output in self.updates.items()})
            if finding is not None:
                self._checks.judge(finding)
            new = set(self.updates.values())
            return {name: np.array(value) for name, value in results.items() if name not in new}

    def state(self) -> dict[str, np.ndarray]:
        """The values of all state after the last step."""
        with own_settings(), self._lock:
            self._begin()
            every = {**self._weights(), **self._state}
            return {spec.name: np.array(every[spec.name]) for spec in self.optional_inputs}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """The state for the next step: that of the folder, where `values` has none. Raises InputError."""
        checked = check_feeds((), self.optional_inputs, values)
        with own_settings(), self._lock:
            self._state = {}
            self._begin()
            self._state.update({name: put(np.array(value), self._device) for name, value in checked.items()})

    def _begin(self) -> None:
        """Arrays of their own, which the first step may use up."""
        if not self._state:
            weights = self._program.weights
            self._state = {name: put(np.array(weights[name]), self._device) for name in self.updates}

    def _weights(self) -> dict[str, jax.Array]:
        if not self._arrays:
            self._arrays = {name: put(np.array(a), self._device) for name, a in self._program.weights.items()}
        return self._arrays

    def _run(self, call: Any, values: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        arguments = [fresh_entropy() if name is None else unbound(values[name]) for name in self._program.arguments]
        try:
            with jax.default_device(self._device):
                results = list(call(*(put(a, self._device) if isinstance(a, np.ndarray) else a for a in arguments)))
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise PfvmError(f"{self._name}: the program could not be run: {reason}") from error
        except ValueError as error:  # sizes that the program's dimensions do not allow
            raise InputError(f"the program does not take these shapes: {str(error).strip().splitlines()[0]}") from error
        names = [spec.name for spec in self.outputs]
        return dict(zip(names, results)), results[len(names)] if len(results) > len(names) else None
