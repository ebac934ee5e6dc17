"""State of a training step as OrtValues: outputs of one call are inputs of the next, without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .ort_values import from_ort, to_ort

if TYPE_CHECKING:
    from .ort import OrtExecutable


class OrtResident:
    """See `pfvm.runtime.resident.Resident`. Device arrays are OrtValues."""

    def __init__(self, executable: OrtExecutable, updates: Mapping[str, str]) -> None:
        self.device = executable.device
        self._executable = executable
        self._state_of = {output: state for state, output in updates.items()}

    def put(self, array: np.ndarray[Any, Any], name: str | None = None) -> Any:
        return to_ort(np.array(array))

    def get(self, value: Any) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = from_ort(value)
        return array

    def __call__(self, feeds: Mapping[str, Any], state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs = self._executable.run_on_device(feeds, state)
        results = {name: from_ort(value) for name, value in outputs.items() if name not in self._state_of}
        return results, {state: outputs[output] for output, state in self._state_of.items()}
