"""Several training steps in one call: what PyTorch would give each of them, as one more axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfvm.compiler.capture.dtypes import to_numpy
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.repeat import per_step

from .resident import Resident
from .torch_assumptions import StepAssumptions
from .torch_step import StepState


class StepsState(StepState):
    """A `StepState` for a model of `steps` steps. Seeds are drawn as that many calls of one step would draw them."""

    def __init__(self, exported: Exported, resident: Resident, steps: int) -> None:
        super().__init__(exported, resident)
        self._steps = steps
        self._assumptions = _StepsAssumptions(exported, steps)

    def _array(self, slot: Any, tensor: Any) -> np.ndarray[Any, Any]:
        if slot.state.kind != "rng":
            return super()._array(slot, tensor)
        return to_numpy(torch.stack([tensor, *(slot.state.place.get() for _ in range(self._steps - 1))]))


class _StepsAssumptions(StepAssumptions):
    """Numbers that differ between the first step and the others come as a list of one for each step."""

    def __init__(self, exported: Exported, steps: int) -> None:
        super().__init__(exported)
        stacked = per_step(exported)
        self._later = {n: number.later for n, number in exported.numbers.items() if n in stacked and number.later}
        self._steps = steps

    def numbers(self) -> dict[str, Any]:
        found = super().numbers()
        first = {name: [found[name]] for name in self._later}
        return found | {n: first[n] + [float(place.get())] * (self._steps - 1) for n, place in self._later.items()}
