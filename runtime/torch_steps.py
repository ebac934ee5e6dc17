"""Several training steps in one call: what PyTorch would give each of them, as one more axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pfvm.compiler.capture.dtypes import to_numpy
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.repeat import per_step

from .resident import Resident
from .torch_assumptions import StepAssumptions
from .torch_step import Ready, StepState


class StepsState(StepState):
    """A `StepState` for a model of `steps` steps. Seeds are drawn as that many calls of one step would draw them.

    ends_early: the model's last output says how many steps ran, `steps_done`; results have as many rows.
    """

    def __init__(self, exported: Exported, resident: Resident, steps: int, ends_early: bool = False) -> None:
        super().__init__(exported, resident)
        self._steps = steps
        self._count = exported.model.graph.outputs[-1].name if ends_early else None
        self.steps_done = 0
        self._assumptions = _StepsAssumptions(exported, steps)

    def run(self, feeds: Mapping[str, Any], ready: Ready | None = None) -> dict[str, Any]:
        if self._count is None:
            results, self.steps_done = super().run(feeds, ready), self._steps
            return results
        generator = torch.get_rng_state() if self._seeds and ready is None else None
        results = super().run(feeds, ready)
        self.steps_done = int(results.pop(self._count))
        if generator is not None and self.steps_done < self._steps:
            self._draw_again(generator)
        return {name: value[: self.steps_done] for name, value in results.items()}

    def _draw_again(self, generator: torch.Tensor) -> None:
        """Leave torch's generator as the steps that ran would have left it."""
        torch.set_rng_state(generator)
        for place in filter(None, (slot.state.place for slot in self._seeds)):
            for _ in range(self.steps_done):
                place.get()

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
