"""A compiled training step between PyTorch and a device: state goes there once and stays, tensors learn of it late."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from pfvm.compiler.capture.dtypes import to_numpy
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.fake_swap import SWAP_LOCK
from pfvm.compiler.capture.reach import Place, ReachedTensor
from pfvm.errors import StaleWeightError

from .places import Places
from .resident import DeviceArray, Resident
from .torch_assumptions import StepAssumptions
from .torch_deferred import OnDevice, can_defer, defer, on_device, store
from .torch_numbers import NumberFeeds


class _Slot:
    """One tensor of state: where it was found last, and the device's values of it."""

    def __init__(self, name: str, state: ReachedTensor, is_updated: bool) -> None:
        self.name = name
        self.state = state
        self.is_updated = is_updated
        self.dtype, self.shape = state.tensor.dtype, state.tensor.shape  # now: model.to(dtype) changes the same tensor
        self.tensor: torch.Tensor | None = None
        self.values: OnDevice | None = None


class Ready(NamedTuple):
    """What a call takes: a batch on the device by input names, and the seeds that it was given when it went there."""

    arrays: Mapping[str, DeviceArray]
    seeds: Mapping[str, np.ndarray[Any, Any]]


class StepState:
    """Runs a step on the state that hangs in the program's modules and optimizers, and puts the new state there.

    A tensor that nobody has used since the last call stays on the device. One that somebody used, or that was replaced,
    is sent again: every way to change a value counts. A tensor whose memory has another holder (a view, a state_dict
    that is kept) is brought back at the end of each call. A call that fails changes nothing.
    """

    def __init__(self, exported: Exported, resident: Resident) -> None:
        self._resident = resident
        self._slots = [_Slot(name, s, name in exported.updates) for name, s in exported.states.items()]
        self._seeds = [slot for slot in self._slots if slot.state.kind == "rng"]
        self._read = [slot for slot in self._slots if slot.state.kind != "rng"]
        self._places = Places([slot.state.place for slot in self._read])
        self._updated = [slot for slot in self._slots if slot.is_updated]
        self._number_feeds = NumberFeeds(resident, exported.updates)
        self._updated_numbers = [(name, n) for name, n in exported.numbers.items() if name in exported.updates]
        self._cleared = [state.place for state in exported.cleared]
        self._assumptions = StepAssumptions(exported)
        self._optimizers = exported.optimizers
        self._schedulers = exported.schedulers

    def run(self, feeds: Mapping[str, Any], ready: Ready | None = None) -> dict[str, Any]:
        """One step; its results by output name. Raises StaleWeightError, and what a call of the executable raises."""
        with SWAP_LOCK:
            if ready is not None or not self._seeds:
                return self._run(feeds, ready)
            with _generator_kept():
                return self._run(feeds, Ready({}, self.seeds()))

    def rehearse(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The results of a call that changes no tensor and no number; seeds are drawn."""
        with SWAP_LOCK:
            fed, state = self._gathered({**feeds, **self.seeds()})
            copies = {name: self._resident.put(self._resident.get(value), name) for name, value in state.items()}
            return self._resident(fed, copies)[0]

    def seeds(self) -> dict[str, np.ndarray[Any, Any]]:
        """The seeds of one call, drawn from torch's generator."""
        drawn = [(slot, slot.state.place) for slot in self._seeds]
        return {
            slot.name: self._array(slot, slot.state.tensor if place is None else place.get()) for slot, place in drawn
        }

    def ready(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Ready:
        """A batch on the device, for `run`, and the seeds of that call. Any thread may make it."""
        return Ready({name: self._resident.put(array, name) for name, array in arrays.items()}, self.seeds())

    def _run(self, feeds: Mapping[str, Any], ready: Ready | None) -> dict[str, Any]:
        fed, state = self._gathered(feeds if ready is None else {**feeds, **ready.seeds})
        if ready is not None:
            state.update(ready.arrays)
        try:
            results, new = self._resident(fed, state)
        except BaseException:
            self._take_back(state)
            raise
        self._commit(new)
        return results

    def _gathered(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the executable is given from the host, and what is on the device."""
        numbers = self._assumptions.numbers()
        state: dict[str, Any] = {}
        fed = dict(feeds)
        for slot, tensor in zip(self._read, self._places.get()):
            values, last = slot.values, slot.tensor
            if values is not None and last is not None and tensor is last and on_device(last) is values:
                state[slot.name] = values.array  # as the last call left it
            else:
                self._gather(slot, tensor, state, fed)
        self._number_feeds.add(numbers, fed, state)
        return fed, state

    def _gather(self, slot: _Slot, tensor: Any, state: dict[str, Any], feeds: dict[str, Any]) -> None:
        """Where the slot's values are: on the device already, to be put there, or (never updated) to be fed."""
        if tensor is None:
            tensor = self._absent(slot)
        values = on_device(tensor) if isinstance(tensor, torch.Tensor) else None
        slot.tensor = tensor
        if values is not None and values.device == self._resident.device:
            slot.values = values
            state[slot.name] = values.array
            return
        slot.values = None
        array = self._array(slot, tensor)
        if slot.is_updated:
            state[slot.name] = self._resident.put(array, slot.name)
        else:
            feeds[slot.name] = array

    def _absent(self, slot: _Slot) -> torch.Tensor:
        """The first value of what nothing holds yet."""
        if slot.state.place is None:
            return slot.state.tensor
        if slot.state.role == "buffer":
            if slot.state.is_required:
                raise StaleWeightError(
                    f"{slot.state.name!r} was there at compile and is None now: the step does not update its parameter "
                    "then; call backward() before it, or compile again"
                )
            return torch.zeros_like(slot.state.tensor)
        if slot.state.is_initial:
            return slot.state.tensor.clone()  # it may have to start again: its own memory keeps the first value
        raise StaleWeightError(f"weight {slot.state.name!r} is not where it was at compile; compile again")

    def _array(self, slot: _Slot, tensor: Any) -> np.ndarray[Any, Any]:
        if not isinstance(tensor, torch.Tensor):
            raise StaleWeightError(
                f"weight {slot.state.name!r} is now a {type(tensor).__name__}, not a tensor; compile again"
            )
        if tensor.shape != slot.shape or tensor.dtype != slot.dtype:
            raise StaleWeightError(
                f"weight {slot.state.name!r} is now {tensor.dtype} {list(tensor.shape)}; "
                f"it was compiled as {slot.dtype} {list(slot.shape)}: compile again"
            )
        return to_numpy(tensor)

    def _take_back(self, state: Mapping[str, Any]) -> None:
        """After a failure: the same values, perhaps in other memory."""
        for slot in self._updated:
            if slot.values is not None and slot.name in state:
                slot.values.array = state[slot.name]

    def _commit(self, new: Mapping[str, Any]) -> None:
        for slot in self._updated:
            array = new[slot.name]
            if slot.values is not None:
                slot.values.array = array
            else:
                self._publish(slot, array)
        for optimizer in self._optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # what a learning rate scheduler asks for
        for name, number in self._updated_numbers:
            number.place.set(type(number.value)(self._resident.get(new[name]).item()))
        with torch._C.DisableTorchFunctionSubclass():  # to clear a gradient needs no values
            for place in self._cleared:
                _clear(place)
        for scheduler in self._schedulers:
            scheduler.step()

    def _publish(self, slot: _Slot, array: Any) -> None:
        """The first call after somebody used the tensor, or the first of all."""
        tensor, place = slot.tensor, slot.state.place
        assert tensor is not None
        if place is not None and (slot.state.is_initial or slot.state.role == "buffer"):
            place.set(tensor)  # where an optimizer or backward would have put it
        if can_defer(tensor):
            defer(tensor, array, self._resident.device, self._resident.get)
        else:
            store(tensor, self._resident.get(array))


@contextlib.contextmanager
def _generator_kept() -> Iterator[None]:
    """A call that fails has drawn no seed."""
    before = torch.get_rng_state()
    try:
        yield
    except BaseException:
        torch.set_rng_state(before)
        raise


def _clear(place: Place | None) -> None:
    if place is not None:
        place.set(None)
