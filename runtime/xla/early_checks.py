"""Checks of indices that follow from a call's inputs alone run before the program: in numpy, or as one of their own.

A program that finds a wrong index itself must return its donated state as it was, so that it selects every result and
copies what it still needs: an MLP's training step takes 1.3 times as long. Targets and tokens come with the call; they
are judged first, and the program uses up its state without a copy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.interpreters import partial_eval

from .integer_bounds import sizes_without_finding
from .integer_steps import IntegerProgram, in_numpy
from .placement import Placement, Shardings
from .prepared import Program, staged
from .range_checks import NOTHING

# What is worth more than a copy of the state.
_HEAVY = {"dot_general", "conv_general_dilated", "while"}


def split_off(program: Program, placement: Placement) -> tuple[Program, Callable[..., Any]] | None:
    """A program whose last result is the checks' finding as (the program without it, arguments → the finding).

    None where the finding depends on donated arguments, or costs much.
    """
    closed, donated = program.traced.jaxpr, tuple(program.traced.donate_argnums)
    results = len(closed.jaxpr.outvars) - 1
    checks, used = partial_eval.dce_jaxpr(closed.jaxpr, [False] * results + [True])
    if any(used[i] for i in donated) or _is_heavy(checks):
        return None
    rest, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * results + [False], instantiate=True)
    positions = [i for i, is_used in enumerate(used) if is_used]
    judge = _judge(jex.ClosedJaxpr(checks, closed.consts), placement, _some(program.shardings, positions))

    def finding(arguments: Sequence[Any]) -> Any:
        return judge([arguments[i] for i in positions])

    shardings = _without_last(program.shardings)
    without = staged(jex.ClosedJaxpr(rest, closed.consts), shardings, donated)
    return dataclasses.replace(program, traced=without, shardings=shardings), finding


def _some(shardings: Shardings, positions: Sequence[int]) -> Shardings:
    """Those of a program of some of the arguments, whose only result is the last one."""
    arguments, results = shardings
    if isinstance(arguments, jax.sharding.Sharding):
        return shardings
    return Shardings(tuple(arguments[i] for i in positions), results[-1:])


def _without_last(shardings: Shardings) -> Shardings:
    results = shardings.results
    return shardings if isinstance(results, jax.sharding.Sharding) else shardings._replace(results=results[:-1])


def _judge(checks: jex.ClosedJaxpr, placement: Placement, shardings: Shardings) -> Callable[[Sequence[Any]], Any]:
    """Labels of a batch are few: numpy has looked at them before a program of XLA's is under way."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        return placement.call(staged(checks, shardings).lower().compile(), shardings)

    small = in_numpy(checks)
    if small is None:
        compiled()
    in_host = None if small is None else _by_extremes(small)

    def finding(arguments: Sequence[Any]) -> Any:
        if in_host is not None and all(map(_is_here, arguments)):
            return in_host(arguments)
        return compiled()(*arguments)[0]

    return finding


def _is_here(array: Any) -> bool:
    """False for what several processes share, of which numpy could read only this one's part."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable


def _by_extremes(program: IntegerProgram) -> Callable[[Sequence[Any]], Any]:
    """A look at the smallest and the largest integers first. Then there is usually nothing to find."""
    sizes = sizes_without_finding(program.steps, program.values, program.result, program.arguments)
    if sizes is None:
        return program
    low, high = (functools.partial(f.reduce, axis=None) for f in (np.minimum, np.maximum))

    def finding(arguments: Sequence[Any]) -> Any:
        for array, size in zip(arguments, sizes):
            if low(array) < 0 or high(array) >= size:
                return program(arguments)
        return NOTHING

    return finding


def _is_heavy(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in _HEAVY or any(map(_is_heavy, jex.jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns
    )
