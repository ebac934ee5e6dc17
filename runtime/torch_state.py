"""Live torch tensors behind a compiled model: today's weights for every call, results as tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.dtypes import ready_array, to_numpy, to_torch
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.fake_swap import SWAP_LOCK
from pfvm.compiler.capture.reach import ReachedTensor
from pfvm.errors import InputError, StaleWeightError

_PER_CALL = 16 * 2**20  # bytes of frozen weights compared at a call


def as_array(name: str, value: Any) -> Any:
    """A torch tensor as a numpy array (shared memory where contiguous and on the CPU); anything else unchanged.

    Raises InputError that names the input for a tensor without plain values.
    """
    if not isinstance(value, torch.Tensor):
        return value
    array = ready_array(value)
    if array is not None:
        return array
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        what = "a meta" if value.device.type == "meta" else "a quantized" if value.is_quantized else f"a {value.layout}"
        raise InputError(f"input {name!r} is {what} tensor; expected a plain one (dense, with values)")
    return to_numpy(value)


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A result as a torch tensor."""
    return to_torch(array)


class TorchState:
    """The tensors whose values a model needs, read again at every call from where the function finds them.

    A weight that was replaced in its module, not only changed in place, is seen too.

    Where the weights are frozen (constants of the model), a change is an error, not a new value. Replaced tensors, new
    memory and every write that torch counts are seen at once. Writes that torch does not count (through `.data` or
    numpy) are found by comparing the values with those of the compile: all of them at every call up to 16 MiB of
    weights; of more, 16 MiB a call in turns, so that such a write to a net of 160 MiB shows within ten calls.
    """

    def __init__(self, exported: Exported) -> None:
        states, frozen = exported.states, exported.frozen
        self._states = dict(states)
        self._types = {name: (s.tensor.dtype, s.tensor.shape) for name, s in states.items()}  # model.to() changes them
        self._frozen = frozen
        self._blocks: list[_Block] = []
        self._next = 0
        self._marks: dict[str, tuple[int, int]] = {}
        if frozen:
            with SWAP_LOCK:
                self._marks = {name: _mark(s.tensor) for name, s in states.items()}
            stored = exported.model.graph.initializers
            self._blocks = [block for name, s in states.items() for block in _blocks(s, stored[name])]

    def feeds(self) -> dict[str, np.ndarray[Any, Any]]:
        """Current values by name: views of the tensors' own memory, so nothing is sent that did not change.

        A tensor that numpy cannot view (strided, on another device) is copied at every call.
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
            changed = next((s for name, s in self._states.items() if self._is_marked(name, s)), None)
            changed = changed or self._differing()
        if changed is not None:
            raise StaleWeightError(
                f"weight {changed.name!r} changed after it was compiled in as a constant; compile again, or with "
                "freeze=False to use the current weights at every call"
            )

    def _is_marked(self, name: str, state: ReachedTensor) -> bool:
        current = _current(state)
        return current is not state.tensor or _mark(current) != self._marks[name]

    def _differing(self) -> ReachedTensor | None:
        """The weight of the first of the next blocks, up to 16 MiB of them, that no longer holds its values."""
        start, left = self._next, _PER_CALL
        for step in range(len(self._blocks)):
            block = self._blocks[(start + step) % len(self._blocks)]
            left -= block.values.nbytes
            if left < 0:
                self._next = (start + step) % len(self._blocks)
                break
            if not np.array_equal(_bytes(block.state.tensor)[block.part], block.values):
                return block.state
        return None

    def _value(self, name: str, state: ReachedTensor) -> np.ndarray[Any, Any]:
        tensor = _current(state)
        dtype, shape = self._types[name]
        if tensor.shape != shape or tensor.dtype != dtype:
            raise StaleWeightError(
                f"weight {state.name!r} is now {tensor.dtype} {list(tensor.shape)}; "
                f"it was compiled as {dtype} {list(shape)}: compile again"
            )
        return to_numpy(tensor)


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


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    """Changes with most writes: the version that torch counts, and where the values lie."""
    return 0 if tensor.is_inference() else tensor._version, tensor.data_ptr()


class _Block(NamedTuple):
    """A part of a weight's bytes, and what they were at the compile."""

    state: ReachedTensor
    part: slice
    values: np.ndarray[Any, Any]


def _blocks(state: ReachedTensor, stored: ir.Value) -> list[_Block]:
    """Views of the values that the model holds."""
    assert stored.const_value is not None
    values, size = _as_bytes(stored.const_value.numpy()), _PER_CALL // 4
    return [_Block(state, slice(at, at + size), values[at : at + size]) for at in range(0, len(values), size)]


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return _as_bytes(to_numpy(tensor))


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values as bytes: NaN compares with NaN, and 0.0 differs from -0.0."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
