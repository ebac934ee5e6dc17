"""Executables whose state stays on the device from call to call, as that of a training step does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .ort import OrtExecutable
from .ort_resident import OrtResident

if TYPE_CHECKING:
    from .executable import Executable

DeviceArray = Any  # an OrtValue or a jax.Array: values that the device holds, never written to once made


class Resident(Protocol):
    """Runs a model on state that is already on the device."""

    @property
    def device(self) -> str:
        """Device arrays may be handed from one executable to another where this is equal."""

    def put(self, array: np.ndarray[Any, Any], name: str | None = None) -> DeviceArray:
        """A copy of host values on the device. name: of the input that they are for, where that is known."""

    def get(self, value: DeviceArray) -> np.ndarray[Any, Any]:
        """The values on the host; read-only, they may share memory."""

    def __call__(
        self, feeds: Mapping[str, Any], state: dict[str, DeviceArray]
    ) -> tuple[dict[str, Any], dict[str, DeviceArray]]:
        """Run once: results on the host by output name, and new state on the device by state name.

        `state` holds every input that the model's updates replace, and may hold others. Raises what a call of the
        executable raises. The arrays in `state` are used up; after an error it holds arrays of the same values.
        """


def resident(executable: Executable, updates: Mapping[str, str]) -> Resident:
    """The executable with the state inputs `updates` (state → the output that holds its next value) kept on device."""
    if isinstance(executable, OrtExecutable):
        return OrtResident(executable, updates)
    from .emulator.executable import EmulatorExecutable

    if isinstance(executable, EmulatorExecutable):
        from .emulator.resident import EmulatorResident

        return EmulatorResident(executable, updates)
    from .xla.executable import XlaExecutable
    from .xla.resident import XlaResident

    assert isinstance(executable, XlaExecutable)
    return XlaResident(executable, updates)
