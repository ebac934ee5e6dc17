"""A small program of integers in numpy, step by step: starting one of XLA's takes longer than all of it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np

from .integer_bounds import Step
from .straight import straight_p

# With more elements in all its values, XLA's own program is the faster one.
_MOST_ELEMENTS = 1 << 14


class _UnfitError(Exception):
    """The program does something that is not here."""


def in_numpy(closed: jex.ClosedJaxpr) -> IntegerProgram | None:
    """A program with one result. None where that needs more than the steps below, or where XLA is faster."""
    program = _Writer(len(closed.jaxpr.invars))
    try:
        (result,) = program.add(closed, list(range(len(closed.jaxpr.invars))))
    except _UnfitError:
        return None
    return IntegerProgram(program.steps, program.values, result, [v.aval for v in closed.jaxpr.invars])


class IntegerProgram:
    """Arguments → the result. Slots of values: the arguments, then what is known, or None and what a step gives.

    arguments: their types.
    """

    def __init__(self, steps: Sequence[Step], values: Sequence[Any], result: int, arguments: Sequence[Any]) -> None:
        self.steps, self.values, self.result, self.arguments = steps, list(values), result, arguments
        self._run = [(step.function, step.operands, step.out) for step in steps]

    def __call__(self, arguments: Sequence[Any]) -> Any:
        values = self.values.copy()
        values[: len(self.arguments)] = map(np.asarray, arguments)
        for function, operands, out in self._run:
            values[out] = function(*[values[i] for i in operands])
        return values[self.result]


class _Writer:
    """Writes steps on numbered values; `values` holds those that follow from no argument, and None for the others."""

    def __init__(self, arguments: int) -> None:
        self.values: list[Any] = [None] * arguments
        self.steps: list[Step] = []
        self._elements = 0

    def add(self, closed: jex.ClosedJaxpr, arguments: Sequence[int]) -> list[int]:
        """The slots of a program's results. Programs in it are written out. Raises _UnfitError."""
        jaxpr = closed.jaxpr
        slots: dict[Any, int] = dict(zip(jaxpr.invars, arguments))
        slots.update((v, self._slot(np.asarray(x))) for v, x in zip(jaxpr.constvars, closed.consts))

        def slot(atom: Any) -> int:
            aval: Any = atom.aval
            return self._slot(np.asarray(atom.val, aval.dtype)[()]) if isinstance(atom, jex.Literal) else slots[atom]

        for eqn in jaxpr.eqns:
            operands = tuple(map(slot, eqn.invars))
            if eqn.primitive in (jex.primitives.jit_p, straight_p):
                slots.update(zip(eqn.outvars, self.add(eqn.params["jaxpr"], operands)))
            else:
                slots[eqn.outvars[0]] = self._step(eqn, operands)
        return [slot(v) for v in jaxpr.outvars]

    def _step(self, eqn: Any, operands: tuple[int, ...]) -> int:
        maker = _MAKERS.get(eqn.primitive.name)
        if maker is None:
            raise _UnfitError
        self._check(eqn)
        if eqn.primitive.name == "convert_element_type" and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype:
            return operands[0]
        predicate = self.values[operands[0]]
        if eqn.primitive.name == "select_n" and np.ndim(predicate) == 0 and predicate is not None:
            return operands[1 + int(predicate)]
        function = maker(eqn, eqn.outvars[0].aval)
        known = [self.values[i] for i in operands]
        if all(x is not None for x in known):
            return self._slot(function(*known))
        out = self._slot(None)
        self.steps.append(Step(eqn.primitive.name, function, operands, out))
        return out

    def _slot(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _check(self, eqn: Any) -> None:
        self._elements += sum(v.aval.size for v in (*eqn.invars, *eqn.outvars))
        of_integers = all(np.dtype(v.aval.dtype).kind in "iub" for v in (*eqn.invars, *eqn.outvars))
        if not of_integers or self._elements > _MOST_ELEMENTS:
            raise _UnfitError


def _arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    """numpy's single numbers warn where they overflow; its arrays wrap as XLA's."""

    def make(eqn: Any, out: Any) -> Callable[..., Any]:
        if not out.shape:
            raise _UnfitError
        return function

    return make


def _as_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda eqn, out: function


def _reduction(function: np.ufunc) -> Callable[..., Any]:
    def make(eqn: Any, out: Any) -> Callable[..., Any]:
        axes = eqn.params["axes"]
        return functools.partial(function.reduce, axis=axes if out.shape else None)

    return make


def _reshape(eqn: Any, out: Any) -> Callable[..., Any]:
    return operator.methodcaller("reshape", out.shape)


def _broadcast(eqn: Any, out: Any) -> Callable[..., Any]:
    given, placed = eqn.invars[0].aval, [1] * len(out.shape)
    for axis, n in zip(eqn.params["broadcast_dimensions"], given.shape):
        placed[axis] = n
    if given.size == out.size:
        return operator.methodcaller("reshape", out.shape)
    return lambda x: np.broadcast_to(np.reshape(x, placed), out.shape)


def _convert(eqn: Any, out: Any) -> Callable[..., Any]:
    return operator.methodcaller("astype", np.dtype(out.dtype))


def _select(eqn: Any, out: Any) -> Callable[..., Any]:
    predicate = eqn.invars[0].aval
    if len(eqn.invars) != 3 or predicate.dtype != np.bool_:
        raise _UnfitError
    if predicate.shape:
        return lambda p, a, b: np.where(p, b, a)
    return lambda p, a, b: b if p else a


def _slice(eqn: Any, out: Any) -> Callable[..., Any]:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    return operator.itemgetter(tuple(slice(*each) for each in zip(starts, limits, strides)))


def _stack(eqn: Any, out: Any) -> Callable[..., Any]:
    axis, dtype = eqn.params["axis"], np.dtype(out.dtype)
    if len(out.shape) == 1:
        return lambda *parts: np.array(parts, dtype)
    return lambda *parts: np.stack(parts, axis)


def _concatenate(eqn: Any, out: Any) -> Callable[..., Any]:
    axis = eqn.params["dimension"]
    return lambda *parts: np.concatenate(parts, axis)


# Primitive → (equation, result's type) → a function of its operands.
_MAKERS: dict[str, Callable[..., Callable[..., Any]]] = {
    **{name: _arithmetic(getattr(operator, name)) for name in ("add", "sub", "mul")},
    **{name: _as_is(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": _as_is(operator.and_),
    "or": _as_is(operator.or_),
    "max": _as_is(np.maximum),
    "min": _as_is(np.minimum),
    "reduce_min": _reduction(np.minimum),
    "reduce_max": _reduction(np.maximum),
    "reshape": _reshape,
    "squeeze": _reshape,
    "broadcast_in_dim": _broadcast,
    "convert_element_type": _convert,
    "select_n": _select,
    "slice": _slice,
    "stack": _stack,
    "concatenate": _concatenate,
}
