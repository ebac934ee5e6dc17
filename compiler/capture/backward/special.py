"""Functions without an ONNX operator, by series that hold to about 1e-14 in float64; other types go through it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
prims = torch.ops.prims
Tensor = torch.Tensor

# Lanczos' approximation with g = 7 (Godfrey's coefficients).
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_SHIFT = 10  # from there on the asymptotic series of the digamma function and its like hold


def _in_doubles(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wide(x: Tensor) -> Tensor:
        dtype = x.dtype if x.is_floating_point() else torch.float32
        return function(x.to(torch.float64)).to(dtype)

    return wide


@_in_doubles
def lgamma(x: Tensor) -> Tensor:
    """log |Γ(x)|, below 1/2 by reflection."""
    is_small = x < 0.5
    z = torch.where(is_small, 1 - x, x) - 1
    series = torch.full_like(x, _LANCZOS[0])
    for i, coefficient in enumerate(_LANCZOS[1:], 1):
        series = series + coefficient / (z + i)
    t = z + 7.5
    value = 0.5 * math.log(2 * math.pi) + (z + 0.5) * torch.log(t) - t + torch.log(series)
    sine = torch.where(is_small, torch.sin(math.pi * (x - torch.floor(x))).abs(), 1.0)
    result = torch.where(is_small, math.log(math.pi) - torch.log(sine) - value, value)
    return torch.where(torch.isinf(x), torch.inf, result)


@_in_doubles
def digamma(x: Tensor) -> Tensor:
    """Γ'/Γ, below 1/2 by reflection; at the poles NaN, at 0 -inf."""
    is_small = x < 0.5
    z = torch.where(is_small, 1 - x, x)
    value = torch.zeros_like(z)
    for i in range(_SHIFT):
        value = value - 1 / (z + i)
    z = z + _SHIFT
    inverse = 1 / (z * z)
    tail = torch.zeros_like(z)
    for k, bernoulli in reversed(list(enumerate(_BERNOULLI, 1))):
        tail = (tail + bernoulli / (2 * k)) * inverse
    value = value + torch.log(z) - 0.5 / z - tail
    fraction = x - torch.floor(x)
    turn = torch.where(is_small & (fraction != 0), fraction, 0.25)
    reflected = value - math.pi / torch.tan(math.pi * turn)
    at_pole = torch.where(x == 0, -torch.inf, torch.nan)
    return torch.where(is_small, torch.where(fraction == 0, at_pole, reflected), value)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma, for x > 0 (n = 1 everywhere, by reflection)."""
    if n == 0:
        return digamma(x)
    wide = x.to(torch.float64)
    if n > 1:
        return ((-1) ** (n + 1) * math.factorial(n) * _zeta(n + 1, wide)).to(x.dtype)
    is_small = wide < 0.5
    value = _zeta(2, torch.where(is_small, 1 - wide, wide))
    sine = torch.where(is_small, torch.sin(math.pi * (wide - torch.floor(wide))), 1.0)
    return torch.where(is_small, (math.pi / sine) ** 2 - value, value).to(x.dtype)


def _zeta(s: int, x: Tensor) -> Tensor:
    """Hurwitz' zeta function by Euler and Maclaurin's sum."""
    total = torch.zeros_like(x)
    for i in range(_SHIFT):
        total = total + (x + i) ** -s
    x = x + _SHIFT
    total = total + x ** (1 - s) / (s - 1) + 0.5 * x**-s
    factor = float(s)
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        total = total + bernoulli / math.factorial(2 * k) * factor * x ** (1 - s - 2 * k)
        factor *= (s + 2 * k - 1) * (s + 2 * k)
    return total


@_in_doubles
def erfinv(x: Tensor) -> Tensor:
    """Giles' approximation (2012), then two steps of Newton's method."""
    w = -torch.log((1 - x) * (1 + x))
    near = w - 2.5
    far = torch.sqrt(w.clamp(min=5)) - 3
    value = torch.where(w < 5, _polynomial(near, _NEAR), _polynomial(far, _FAR)) * x
    for _ in range(2):
        safe = value.clamp(-5.8, 5.8)
        step = (torch.erf(safe) - x) / (2 / math.sqrt(math.pi) * torch.exp(-safe * safe))
        value = value - torch.where(value.abs() < 5.8, step, 0.0)
    return torch.where(x.abs() == 1, x * torch.inf, torch.where(x.abs() > 1, torch.nan, value))


_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503),
    *(-0.00417768164, 0.246640727, 1.50140941),
)
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613),
    *(0.00943887047, 1.00167406, 2.83297682),
)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def signbit(x: Tensor) -> Tensor:
    """True for -0.0 too."""
    return (x < 0) | ((x == 0) & (1 / x < 0)) if x.is_floating_point() else x < 0


def _number_first(choose: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def choice(a: Tensor, b: Tensor) -> Tensor:
        """A NaN loses."""
        return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, choose(a, b)))

    return choice


def prod(x: Tensor, dims: Any, *, output_dtype: torch.dtype | None = None) -> Tensor:
    """Over several dimensions."""
    x = x if output_dtype is None else x.to(output_dtype)
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim)
    return x


def median(x: Tensor) -> Tensor:
    """Of all elements."""
    return torch.median(x.reshape(-1), 0).values


DECOMPOSITIONS = {
    **dict.fromkeys((aten.lgamma.default, prims.lgamma.default), lgamma),
    **dict.fromkeys((aten.digamma.default, prims.digamma.default), digamma),
    **dict.fromkeys((aten.erfinv.default, prims.erf_inv.default), erfinv),
    aten.polygamma.default: polygamma,
    prims.signbit.default: signbit,
    prims.abs.default: torch.abs,
    prims.neg.default: torch.neg,
    prims.where.default: torch.where,
    prims.fmax.default: _number_first(torch.maximum),
    prims.fmin.default: _number_first(torch.minimum),
    prims.prod.default: prod,
    aten.median.default: median,
}
