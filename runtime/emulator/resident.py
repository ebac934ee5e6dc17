"""State of a training step in the emulated DRAM: it keeps its addresses from call to call."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from pfvm.errors import InputError
from pfvm.runtime.executable import check_feeds

from .executable import EmulatorExecutable, Loaded

Array = np.ndarray


class DramArray:
    """A tensor that the device has. `holder` is the program in whose DRAM it still stands, None once it was fetched."""

    def __init__(self, array: Array | None, holder: Loaded | None = None, output: str = "") -> None:
        self._array, self.holder, self._output = array, holder, output

    def fetch(self) -> Array:
        """Its values on the host. Raises InputError where a later call has used it up."""
        if self._array is None:
            if self.holder is None:
                raise InputError("this state was used up by a later call: read it before, or take the call's results")
            self._array = self.holder.get(self._output)
        return self._array

    def use_up(self) -> None:
        """The memory belongs to a later call."""
        self.holder = None


class EmulatorResident:
    """See `pfvm.runtime.resident.Resident`. Device arrays are DramArrays."""

    def __init__(self, executable: EmulatorExecutable, updates: Mapping[str, str]) -> None:
        self.device = executable.device
        self._executable = executable
        self._updates = dict(updates)
        self._last: weakref.WeakValueDictionary[str, DramArray] = weakref.WeakValueDictionary()

    def put(self, array: Array, name: str | None = None) -> DramArray:
        return DramArray(np.array(array))

    def get(self, value: DramArray) -> Array:
        return value.fetch()

    def _is_there(self, loaded: Loaded, name: str, value: DramArray) -> bool:
        """Does the value stand where the last call left it, and can this call read it there?"""
        latest = value is self._last.get(name) and value.holder is loaded
        return latest and loaded.program.can_take_over(name, self._updates[name])

    def __call__(
        self, feeds: Mapping[str, Any], state: dict[str, DramArray]
    ) -> tuple[dict[str, Any], dict[str, DramArray]]:
        executable = self._executable
        given = [spec for spec in executable.optional_inputs if spec.name in feeds]
        required = [spec for spec in executable.inputs if spec.name not in state]
        values = check_feeds(required, given, feeds)
        with executable.lock:
            loaded = executable.loaded(values)
            stays = {name for name, value in state.items() if self._is_there(loaded, name, value)}
            for name, old in list(self._last.items()):
                if name not in stays:
                    old.fetch()  # somebody may still look at it
                    old.use_up()
            moved = {name: state[name].fetch() for name in state if name not in stays}
            for name in stays:
                loaded.program.take_over(name, self._updates[name])
            before = {name: loaded.program.image(name) for name in stays}
            try:
                loaded.put({**values, **moved}, kept=stays)
                loaded.program.run()
            except BaseException:
                for name, image in before.items():
                    state[name] = DramArray(loaded.restored(name, image))
                raise
            return self._results(loaded, state, stays)

    def _results(
        self, loaded: Loaded, state: dict[str, DramArray], stays: set[str]
    ) -> tuple[dict[str, Any], dict[str, DramArray]]:
        program = loaded.program
        state_of = {output: name for name, output in self._updates.items()}
        results = {name: loaded.get(name) for name in program.outputs if name not in state_of}
        new = {name: DramArray(None, loaded, output) for output, name in state_of.items()}
        for name in stays:
            state[name].use_up()
        self._last = weakref.WeakValueDictionary(new)
        return results, new
