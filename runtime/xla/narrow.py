"""A traced program whose numbers of one type are computed in another, behind the same interface.

TPUs have no float64: XLA emulates it with hundreds of operations for each, and a program's handful of such numbers (a
learning rate, the steps' count to the power of beta) takes longer to compile than the net.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax

from .straight import straight_p

DtypeMap = Mapping[np.dtype, np.dtype]

# Their results are about the bits of their operands.
_OF_BITS = {"bitcast_convert_type", "nextafter", "reduce_precision"}
_CALLS = ("jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "straight")


def narrowed(closed: jex.ClosedJaxpr, types: DtypeMap) -> jex.ClosedJaxpr:
    """The program with values of the types `types` computed as others; its arguments and results are as they were.

    Call with 64-bit types enabled.
    """
    if not _types_in(closed.jaxpr) & set(types):
        return closed

    def function(*arguments: Any) -> list[Any]:
        results = _run(closed.jaxpr, closed.consts, [_cast(x, types) for x in arguments], types)
        return [to_dtype(x, v.aval.dtype) for x, v in zip(results, closed.jaxpr.outvars)]

    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals))


def inlined(closed: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """The program with what it calls written where it is called. Call with 64-bit types enabled."""

    def function(*arguments: Any) -> list[Any]:
        return _run(closed.jaxpr, closed.consts, arguments, {})

    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals))


def _types_in(jaxpr: Any) -> set[Any]:
    """The types of all its values, and of those of the programs in it."""
    found: set[Any] = {getattr(v.aval, "dtype", None) for v in (*jaxpr.invars, *jaxpr.constvars)}
    for eqn in jaxpr.eqns:
        found.update(getattr(v.aval, "dtype", None) for v in eqn.outvars)
        for inner in jex.jaxprs_in_params(eqn.params):
            found |= _types_in(inner)
    return found


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], types: DtypeMap) -> list[Any]:
    """The results of a program for arguments of the new types."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, arguments))
    env.update(zip(jaxpr.constvars, (_cast(x, types) for x in consts)))

    def read(v: Any) -> Any:
        if not isinstance(v, jex.Literal):
            return env[v]
        return _cast(np.asarray(v.val, getattr(v.aval, "dtype", None)), types)

    for eqn in jaxpr.eqns:
        results = _step(eqn, [read(v) for v in eqn.invars], types)
        env.update(zip(eqn.outvars, results))
    return [read(v) for v in jaxpr.outvars]


def _step(eqn: Any, operands: list[Any], types: DtypeMap) -> Sequence[Any]:
    called = _called(eqn)
    if called is not None:
        return _run(called.jaxpr, called.consts, operands, types)
    if eqn.primitive.name in _OF_BITS:
        operands = [to_dtype(x, v.aval.dtype) for x, v in zip(operands, eqn.invars)]
        results = bind(eqn, operands, eqn.params)
        return [_cast(x, types) for x in results]
    return bind(eqn, operands, {key: mapped_parameter(value, types) for key, value in eqn.params.items()})


def _called(eqn: Any) -> Any | None:
    """The program that a call runs, None for other equations."""
    if eqn.primitive is straight_p or eqn.primitive.name in _CALLS:
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        return inner if isinstance(inner, jex.ClosedJaxpr) else None
    return None


def bind(eqn: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    """The results of an equation for these operands and parameters."""
    results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(dict(params)))
    return results if eqn.primitive.multiple_results else [results]


def mapped_parameter(value: Any, types: DtypeMap) -> Any:
    """A parameter of an equation: types and the programs in it are those of the new types."""
    if isinstance(value, np.dtype):
        return types.get(value, value)
    if isinstance(value, jex.ClosedJaxpr):
        return _program(value.jaxpr, value.consts, types)
    if isinstance(value, jex.Jaxpr):
        return _program(value, (), types).jaxpr if not value.constvars else value
    if isinstance(value, tuple) and any(isinstance(each, (jex.ClosedJaxpr, jex.Jaxpr)) for each in value):
        return tuple(mapped_parameter(each, types) for each in value)
    return value


def _program(jaxpr: Any, consts: Sequence[Any], types: DtypeMap) -> jex.ClosedJaxpr:
    """A program inside another: its arguments and results are of the new types as well."""

    def function(*arguments: Any) -> list[Any]:
        return _run(jaxpr, consts, arguments, types)

    structs = [jax.ShapeDtypeStruct(v.aval.shape, types.get(v.aval.dtype, v.aval.dtype)) for v in jaxpr.invars]
    return jax.make_jaxpr(function)(*structs)


def _cast(x: Any, types: DtypeMap) -> Any:
    wanted = types.get(np.dtype(x.dtype)) if isinstance(x.dtype, np.dtype) else None
    return x if wanted is None else to_dtype(x, wanted)


def to_dtype(x: Any, dtype: Any) -> Any:
    """The same values of this type."""
    if x.dtype == dtype:
        return x
    return x.astype(dtype) if isinstance(x, (np.ndarray, np.generic)) else lax.convert_element_type(x, dtype)
