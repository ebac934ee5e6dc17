"""A training step is compiled as a computation of its own, alike where a call runs one step and where it runs many.

XLA decides by its surroundings what becomes one loop nest and what leaves a loop, and where a product and a sum stand
in one nest, LLVM rounds them once. So a last bit of a step would depend on what is around it: the loop, the slice of
its batch, the order of its results. A call that must not be inlined is a border that no such decision crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.extend.core as jex
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from .narrow import bind
from .straight import straight

Border = Literal["program", "loops"]
"""What is compiled apart: the whole program, or the bodies of its loops."""

# The parameters with the body, with the number of operands before its own, and with the number of its constants.
_BODIES = {"scan": ("jaxpr", "", "num_consts"), "while": ("body_jaxpr", "cond_nconsts", "body_nconsts")}


_AROUND = "around_the_step"


def around() -> AbstractContextManager[None]:
    """Inside, what is traced is no part of the step: what its loop keeps count with, and checks of indices."""
    return jax.named_scope(_AROUND)


def apart(closed: jex.ClosedJaxpr, border: Border) -> jex.ClosedJaxpr:
    """The program with this border around its step. A program of several steps without a loop is one step."""
    constants = dict(zip(closed.jaxpr.constvars, closed.consts))
    eqns = [_with_own_body(eqn, constants) for eqn in closed.jaxpr.eqns] if border == "loops" else closed.jaxpr.eqns
    if all(new is old for new, old in zip(eqns, closed.jaxpr.eqns)):
        return _called(closed)
    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=eqns), closed.consts)


def _with_own_body(eqn: Any, constants: Mapping[Any, Any]) -> Any:
    """A loop with its body apart. Constants that jax has brought in from outside are the body's own again."""
    if eqn.primitive.name not in _BODIES:
        return eqn
    key, skipped, count = _BODIES[eqn.primitive.name]
    body, first = eqn.params[key], eqn.params.get(skipped, 0)
    outer = eqn.invars[first : first + eqn.params[count]]
    known = {
        v: o.val if isinstance(o, jex.Literal) else constants[o]
        for v, o in zip(body.jaxpr.invars, outer)
        if isinstance(o, jex.Literal) or o in constants
    }
    return eqn.replace(params={**eqn.params, key: _called(body, known)})


def _called(closed: jex.ClosedJaxpr, known: Mapping[Any, Any] = MappingProxyType({})) -> jex.ClosedJaxpr:
    """The program as a call of itself, which takes and returns arrays in the order of its equations.

    known: arguments that are constants. What is `around` the step stays outside, and so do results that are arguments.
    """
    whole = closed.jaxpr
    before, inside, after = _divided(whole.eqns)
    read = dict.fromkeys(v for eqn in inside for v in eqn.invars if isinstance(v, jex.Var))
    made = [v for eqn in inside for v in eqn.outvars]
    wanted = {v for v in (*whole.outvars, *(v for eqn in after for v in eqn.invars)) if isinstance(v, jex.Var)}
    constants = {**dict(zip(whole.constvars, closed.consts)), **known}
    own = {*made, *constants}
    taken, results = [v for v in read if v not in own], [v for v in made if v in wanted]
    debug = whole.debug_info._replace(arg_names=None, result_paths=None)
    body = whole.replace(constvars=[*constants], invars=taken, outvars=results, eqns=inside, debug_info=debug)
    step = _function(jex.ClosedJaxpr(body, [*constants.values()]))

    def program(*given: Any) -> list[Any]:
        env = {**dict(zip(whole.invars, given)), **constants}
        _run(before, env)
        with set_xla_metadata(inlineable="false"):
            env.update(zip(results, jax.jit(step)(*(env[v] for v in taken))))
        _run(after, env)
        return [_value(v, env) for v in whole.outvars]

    return jax.make_jaxpr(program)(*closed.in_avals)


def _divided(eqns: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Equations around the step that come before it, those of the step, and those behind it."""
    step = [not _is_around(eqn) for eqn in eqns]
    feeding: set[Any] = set()  # what the step reads, by way of other equations too
    for eqn, is_step in zip(reversed(eqns), reversed(step)):
        if is_step or feeding.intersection(eqn.outvars):
            feeding.update(v for v in eqn.invars if isinstance(v, jex.Var))
    parts: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    made: set[Any] = set()
    for eqn, is_step in zip(eqns, step):
        follows = any(isinstance(v, jex.Var) and v in made for v in eqn.invars)
        if is_step or follows:
            made.update(eqn.outvars)
        parts[1 if is_step or (follows and feeding.intersection(eqn.outvars)) else 2 if follows else 0].append(eqn)
    return parts


def _is_around(eqn: Any) -> bool:
    return any(getattr(scope, "name", None) == _AROUND for scope in eqn.source_info.name_stack.stack)


def _run(eqns: Sequence[Any], env: dict[Any, Any]) -> None:
    for eqn in eqns:
        env.update(zip(eqn.outvars, bind(eqn, [_value(v, env) for v in eqn.invars], eqn.params)))


def _function(closed: jex.ClosedJaxpr) -> Callable[..., list[Any]]:
    def training_step(*arguments: Any) -> list[Any]:
        return straight(closed, arguments)

    return training_step


def _value(v: Any, env: Mapping[Any, Any]) -> Any:
    if not isinstance(v, jex.Literal):
        return env[v]
    kind: Any = v.aval
    return np.asarray(v.val, kind.dtype)
