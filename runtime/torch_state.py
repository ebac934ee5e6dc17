"""Live torch tensors behind a compiled model: today's weights for every call, results as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pfvm.compiler.capture.dtypes import to_numpy, to_torch
from pfvm.compiler.capture.fake_swap import SWAP_LOCK
from pfvm.compiler.capture.reach import ReachedTensor
from pfvm.errors import StaleWeightError

_SAMPLE = 32  # elements looked at for writes that torch does not count (through .data)


def as_array(value: Any) -> Any:
    """A torch tensor as a numpy array (shared memory where contiguous and on the CPU); anything else unchanged."""
    return to_numpy(value) if isinstance(value, torch.Tensor) else value


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A result as a torch tensor."""
    return to_torch(array)


class TorchState:
    """The tensors whose values a model needs, read again at every call from where the function finds them.

    states: by name in the model. A weight that was replaced in its module, not only changed in place, is seen too.
    frozen: the values are constants of the model; then a change is an error, not a new value.
    """

    def __init__(self, states: Mapping[str, ReachedTensor], frozen: bool) -> None:
        self._states = dict(states)
        self._frozen = frozen
        with SWAP_LOCK:
            self._marks = {name: _mark(s.tensor) for name, s in states.items()} if frozen else {}
        self._copies: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {}

    def feeds(self) -> dict[str, np.ndarray[Any, Any]]:
        """Current values by name: views of the tensors' own memory, so nothing is sent that did not change.

        A tensor that numpy cannot view (strided, on another device) is copied, again only when it changed.
        A frozen state has no feeds. Raises StaleWeightError.
        """
        if self._frozen:
            self.check_unchanged()
            return {}
        with SWAP_LOCK:
            return {name: self._value(name, state) for name, state in self._states.items()}

    def check_unchanged(self) -> None:
        """Raises StaleWeightError when a frozen weight was replaced or written to since the compile."""
        with SWAP_LOCK:
            changed = next((s for name, s in self._states.items() if self._has_changed(name, s)), None)
        if changed is not None:
            raise StaleWeightError(
                f"weight {changed.name!r} changed after it was compiled in as a constant; compile again, or with "
                "freeze=False to use the current weights at every call"
            )

    def _has_changed(self, name: str, state: ReachedTensor) -> bool:
        current = _current(state)
        return current is not state.tensor or _mark(current) != self._marks[name]

    def _value(self, name: str, state: ReachedTensor) -> np.ndarray[Any, Any]:
        tensor = _current(state)
        if tensor.shape != state.tensor.shape or tensor.dtype != state.tensor.dtype:
            raise StaleWeightError(
                f"weight {state.name!r} is now {tensor.dtype} {list(tensor.shape)}; "
                f"it was compiled as {state.tensor.dtype} {list(state.tensor.shape)}: compile again"
            )
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return to_numpy(tensor)
        mark = (id(tensor), *_mark(tensor))
        known = self._copies.get(name)
        if known is None or known[0] != mark:
            known = self._copies[name] = (mark, to_numpy(tensor))
        return known[1]


def _current(state: ReachedTensor) -> torch.Tensor:
    """The tensor that hangs in the state's place now; the captured one where only the trace knew it."""
    if state.place is None:
        return state.tensor
    try:
        tensor = state.place.get()
    except (LookupError, AttributeError, ValueError, TypeError) as error:
        raise StaleWeightError(
            f"weight {state.name!r} is not where it was at compile ({error}); compile again"
        ) from error
    if not isinstance(tensor, torch.Tensor):
        raise StaleWeightError(f"weight {state.name!r} is now a {type(tensor).__name__}, not a tensor; compile again")
    return tensor


def _mark(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Changes when the tensor is written to: its version, and a sample, as writes through .data do not count."""
    version = 0 if tensor.is_inference() else tensor._version
    plain = tensor.detach()
    step = max(1, plain.numel() // _SAMPLE)
    if plain.is_contiguous():
        sample = plain.view(-1)[::step]
    else:
        sample = plain[torch.unravel_index(torch.arange(0, plain.numel(), step), plain.shape)]
    return version, plain.data_ptr(), to_numpy(sample).tobytes()
