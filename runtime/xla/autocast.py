"""A traced program in bfloat16 (`--bf16`), behind the same interface, as torch.autocast has it.

Products and convolutions take and give bfloat16, and so does what stands between them. Sums, exponentials, roots and
what follows from them up to the next product stay float32, and so does everything that makes the new values of state:
weights are updated in float32. Arguments, and constants, are taken in the type of what they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import ml_dtypes
import numpy as np

from .narrow import bind, inlined, mapped_parameter, to_dtype

_WIDE = np.dtype(np.float32)
_NARROW = np.dtype(ml_dtypes.bfloat16)
_TYPES = {_WIDE: _NARROW}

_PRODUCTS = {"dot_general", "conv_general_dilated"}
_CONTROL = {"scan", "while", "cond"}
_FLOAT32 = {
    "exp", "exp2", "expm1", "log", "log1p", "pow", "integer_pow", "sqrt", "rsqrt", "cbrt", "erf_inv", "lgamma",
    "digamma", "reduce_sum", "reduce_prod", "reduce_window_sum", "cumsum", "cumprod", "cumlogsumexp", "sin", "cos",
    "bitcast_convert_type", "nextafter", "reduce_precision", "fft", "cholesky", "triangular_solve", "eigh", "qr", "svd",
}  # fmt: skip


class _Value(NamedTuple):
    """weak: an argument or a constant, or made of such alone: float32 that may become bfloat16 where it meets that."""

    array: Any
    weak: bool


def in_bfloat16(closed: jex.ClosedJaxpr, states: int = 0) -> jex.ClosedJaxpr:
    """The program in bfloat16. states: so many of its results, the first, are new values of state.

    Call with 64-bit types enabled.
    """
    flat = inlined(closed)
    exact = _makers(flat.jaxpr, states)

    def function(*arguments: Any) -> list[Any]:
        return _Run(exact).of(flat.jaxpr, flat.consts, arguments)

    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals))


def _makers(jaxpr: Any, states: int) -> set[int]:
    """The equations (by id) that new values of state come from, back to the products and sums that gradients are."""
    producers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    found: set[int] = set()
    open_ends = [v for v in jaxpr.outvars[:states] if isinstance(v, jex.Var)]
    while open_ends:
        eqn = producers.get(open_ends.pop())
        if eqn is None or id(eqn) in found or eqn.primitive.name in _PRODUCTS | _CONTROL:
            continue
        found.add(id(eqn))
        if not eqn.primitive.name.startswith("reduce_"):
            open_ends += [v for v in eqn.invars if isinstance(v, jex.Var)]
    return found


class _Run:
    """One evaluation. exact: the ids of equations that stay float32."""

    def __init__(self, exact: set[int]) -> None:
        self._exact = exact
        self._narrow: dict[Any, Any] = {}  # arguments and constants as bfloat16, once each

    def of(self, jaxpr: Any, consts: Any, arguments: Any) -> list[Any]:
        """The results for arguments of the program's own types, in those types."""
        env = {v: _Value(x, True) for v, x in zip((*jaxpr.invars, *jaxpr.constvars), (*arguments, *consts))}
        for eqn in jaxpr.eqns:
            operands = [self._read(env, v) for v in eqn.invars]
            env.update(zip(eqn.outvars, self._step(eqn, operands)))
        return [to_dtype(self._read(env, v).array, v.aval.dtype) for v in jaxpr.outvars]

    def _read(self, env: Mapping[Any, _Value], v: Any) -> _Value:
        if not isinstance(v, jex.Literal):
            return env[v]
        return _Value(np.asarray(v.val, getattr(v.aval, "dtype", None)), True)

    def _step(self, eqn: Any, operands: list[_Value]) -> list[_Value]:
        name = eqn.primitive.name
        floats = [x for v, x in zip(eqn.invars, operands) if _is_wide(v)]
        weak = all(x.weak for x in floats)
        if name in _CONTROL:
            return self._control(eqn, operands)
        if name in _PRODUCTS and floats:
            return self._in_bfloat16(eqn, operands)
        stays = weak or id(eqn) in self._exact or name in _FLOAT32 or _has_programs(eqn)
        if stays or any(x.array.dtype == _WIDE and not x.weak for x in floats):
            arrays = [to_dtype(x.array, v.aval.dtype) for v, x in zip(eqn.invars, operands)]
            explicit = any(v.aval.dtype in (_NARROW, np.float16) for v in eqn.invars)
            return [_Value(x, weak and not explicit) for x in bind(eqn, arrays, eqn.params)]
        return self._in_bfloat16(eqn, operands)

    def _in_bfloat16(self, eqn: Any, operands: list[_Value]) -> list[_Value]:
        arrays = [self._narrowed(v, x) if _is_wide(v) else x.array for v, x in zip(eqn.invars, operands)]
        params = {key: mapped_parameter(value, _TYPES) for key, value in eqn.params.items()}
        return [_Value(x, False) for x in bind(eqn, arrays, params)]

    def _narrowed(self, v: Any, value: _Value) -> Any:
        if not value.weak or isinstance(v, jex.Literal):
            return to_dtype(value.array, _NARROW)
        if v not in self._narrow:
            self._narrow[v] = to_dtype(value.array, _NARROW)
        return self._narrow[v]

    def _control(self, eqn: Any, operands: list[_Value]) -> list[_Value]:
        """A loop's state has one type from step to step: float32 at the edges of its body."""
        arrays = [to_dtype(x.array, v.aval.dtype) for v, x in zip(eqn.invars, operands)]
        params = {key: _body(value) if key != "cond_jaxpr" else value for key, value in eqn.params.items()}
        return [_Value(x, True) for x in bind(eqn, arrays, params)]


def _body(value: Any) -> Any:
    if isinstance(value, jex.ClosedJaxpr):
        return in_bfloat16(value)
    if isinstance(value, tuple) and value and all(isinstance(each, jex.ClosedJaxpr) for each in value):
        return tuple(map(in_bfloat16, value))
    return value


def _is_wide(v: Any) -> bool:
    return v.aval.dtype == _WIDE


def _has_programs(eqn: Any) -> bool:
    return any(True for _ in jex.jaxprs_in_params(eqn.params))
