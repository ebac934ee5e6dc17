"""Calls with inputs of the types of an earlier call: the arguments go straight to the program that ran then.

What such a call needs to know is found out once. Beside the program it costs a look at each input's type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from .compiled import Compiled, SegmentRunner
from .indices import IndexCheck


class DirectCall:
    """One program, and where each of its arguments and the model's results is. Nothing here changes after it is made.

    own: the model's own values of inputs that the call does not give, by name.
    """

    def __init__(
        self,
        program: Compiled,
        feeds: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        donated: Collection[str],
        own: Mapping[str, jax.Array],
        outputs: Sequence[ir.Value],
        checks: Sequence[IndexCheck],
    ) -> None:
        self._program = program
        self._types = [(name, array.dtype, array.shape) for name, array in feeds.items()]
        self._feeds = frozenset(feeds)
        self._state = frozenset(state)
        # State that the program replaces keeps its type.
        self._placed = [(name, x.dtype, x.shape) for name, x in state.items() if name not in donated]
        self._own = dict(own)
        self._arguments = [v.name or "" for v in program.traced]
        self._results = [(v.name or "", program.outputs.index(v)) for v in outputs]
        self._checks = checks
        given = {*self._feeds, *self._state}
        self._checked = [v for c in checks for v in (c.source, c.data) if v.is_graph_input() and v.name in given]

    def fits(self, feeds: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Whether a call gives the same inputs, arrays of the same types."""
        if type(feeds) is not dict or feeds.keys() != self._feeds or state.keys() != self._state:
            return False
        for name, dtype, shape in self._types:
            array = feeds[name]
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
        return all(state[name].shape == shape and state[name].dtype == dtype for name, dtype, shape in self._placed)

    def __call__(self, feeds: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, jax.Array]:
        """The model's results by name, where the call fits. Raises what `Compiled.run` raises, and InputError."""
        given = {**self._own, **feeds, **state}
        if self._checks:
            arrays = {value: given[value.name or ""] for value in self._checked}
            for check in self._checks:
                check(arrays)
        results = self._program.run([given[name] for name in self._arguments])
        return {name: results[i] for name, i in self._results}


def direct_call(
    runner: SegmentRunner,
    inputs: Mapping[str, ir.Value],
    outputs: Sequence[ir.Value],
    feeds: Mapping[str, np.ndarray],
    state: Mapping[str, Any],
    checks: Iterable[IndexCheck],
) -> DirectCall | None:
    """The direct form of a call that has just run. `inputs`, `outputs`: those of the model, whose only segment it is.

    None where more than the inputs' types decides what runs, or where a result is no result of the program.
    """
    given = {inputs[name]: array for name, array in (*feeds.items(), *state.items())}
    program = runner.program_for(given)
    if program is None or not all(v in program.outputs for v in outputs):
        return None
    own = {v.name or "": runner.own_value(v) for v in program.traced if v not in given}
    donated = {v.name or "" for v in runner.donations}
    return DirectCall(program, feeds, state, donated, own, outputs, list(checks))
