"""The steps of a traced program that usually prepare weights, in numpy: compiling them would take longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np

from .straight import straight_p


def _broadcast(x: Any, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], **_: Any) -> np.ndarray:
    placed = [1] * len(shape)
    for axis, n in zip(broadcast_dimensions, np.shape(x)):
        placed[axis] = n
    return np.broadcast_to(np.reshape(x, placed), shape)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, **_: function(a, b)


def _divide(a: Any, b: Any, **_: Any) -> Any:
    """Integers truncate towards zero in XLA."""
    if np.asarray(a).dtype.kind not in "iu":
        return np.divide(a, b)
    quotient, remainder = np.divmod(a, b)
    return quotient + ((remainder != 0) & ((np.asarray(a) < 0) != (np.asarray(b) < 0)))


NUMPY_STEPS: dict[str, Callable[..., Any]] = {
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "reshape": lambda x, new_sizes, **_: np.reshape(x, new_sizes),
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "slice": lambda x, start_indices, limit_indices, strides: x[
        tuple(slice(*each) for each in zip(start_indices, limit_indices, strides or (1,) * x.ndim))
    ],
    "concatenate": lambda *parts, dimension: np.concatenate(parts, dimension),
    "rev": lambda x, dimensions: np.flip(x, dimensions),
    "broadcast_in_dim": _broadcast,
    "convert_element_type": lambda x, new_dtype, **_: np.asarray(x).astype(new_dtype),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _divide,
    "sqrt": lambda x, **_: np.sqrt(x),
    "neg": lambda x: np.negative(x),
}


def is_numpy_step(eqn: Any) -> bool:
    """Can `evaluate` run this equation?"""
    inner = inner_of(eqn)
    return eqn.primitive.name in NUMPY_STEPS if inner is None else all(map(is_numpy_step, inner.eqns))


def inner_of(eqn: Any) -> Any | None:
    """The program that a call runs; None for other equations, and for one with constants of its own."""
    closed = eqn.params["jaxpr"] if eqn.primitive in (jex.primitives.jit_p, straight_p) else None
    return None if closed is None or closed.consts else closed.jaxpr


def evaluate(inputs: Sequence[Any], outputs: Sequence[Any], steps: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """The values of the variables `outputs` after the equations `steps` (each an `is_numpy_step`), contiguous."""
    with np.errstate(all="ignore"):
        results = _run(inputs, outputs, steps, arrays)
    return [np.ascontiguousarray(x).reshape(v.aval.shape) for x, v in zip(results, outputs)]


def _run(inputs: Sequence[Any], outputs: Sequence[Any], steps: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    env = dict(zip(inputs, arrays))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, jex.Literal) else env[v]

    for eqn in steps:
        operands, inner = [read(v) for v in eqn.invars], inner_of(eqn)
        if inner is None:
            (result,) = eqn.outvars
            env[result] = np.asarray(NUMPY_STEPS[eqn.primitive.name](*operands, **eqn.params), result.aval.dtype)
        else:
            env.update(zip(eqn.outvars, _run(inner.invars, inner.outvars, inner.eqns, operands)))
    return [read(v) for v in outputs]
