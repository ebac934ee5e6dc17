"""State of a training step as jax arrays: outputs of one call are inputs of the next, and their memory is donated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .executable import XlaExecutable


class XlaResident:
    """See `pfvm.runtime.resident.Resident`. Device arrays are jax.Arrays."""

    def __init__(self, executable: XlaExecutable, updates: Mapping[str, str]) -> None:
        self.device = executable.device
        self._executable = executable
        self._state_of = {output: state for state, output in updates.items()}
        executable.donate(updates)

    def put(self, array: np.ndarray[Any, Any], name: str | None = None) -> Any:
        return self._executable.put(np.array(array), name)  # a copy: jax may keep a host array's memory

    def get(self, value: Any) -> np.ndarray[Any, Any]:
        return self._executable.host(value)

    def __call__(self, feeds: Mapping[str, Any], state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        outputs = self._executable.run_on_device(feeds, state)
        results = {name: self._executable.host(value) for name, value in outputs.items() if name not in self._state_of}
        return results, {state: outputs[output] for output, state in self._state_of.items()}
