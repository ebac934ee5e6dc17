"""Rounding to a machine's number formats. Numbers are kept as float64; these functions say which float64 can be stored.

A format of e exponent and m mantissa bits and a bias has the numbers ±1.f · 2^(E - bias), f of m bits, 1 ≤ E ≤ 2^e - 2:
an exponent of all zeros is 0 (no denormals), one of all ones is infinity (no NaN).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from pfvm.compiler.plan.machine import Dtype

Array = np.ndarray

_DOUBLE_MANTISSA = 52


class Range(NamedTuple):
    """The smallest and the largest positive number of a format."""

    smallest: float
    largest: float


@functools.cache
def range_of(exponent: int, mantissa: int, bias: int) -> Range:
    """The range of a format."""
    return Range(2.0 ** (1 - bias), (2.0 - 2.0**-mantissa) * 2.0 ** (2**exponent - 2 - bias))


def round_to(x: Array, dtype: Dtype) -> Array:
    """Each number rounded to the nearest of a float dtype, ties to the even mantissa; float64 in, a new float64 out.

    The mantissa is rounded first; then what lies below the smallest number is a zero of its sign, above the largest an
    infinity. The format has no NaN: what is undefined is stored as infinity, its exponent of all ones.
    """
    assert dtype.exponent is not None and dtype.mantissa is not None and dtype.bias is not None
    x = np.asarray(x)
    smallest, largest = range_of(dtype.exponent, dtype.mantissa, dtype.bias)
    if (dtype.exponent, dtype.mantissa, dtype.bias) == (8, 23, 127):
        return _round_single(x, smallest)
    rounded = round_mantissa(x, dtype.mantissa)
    size = np.abs(rounded)
    if not np.all(size <= largest):  # NaN, too
        rounded[np.isnan(rounded)] = np.inf
        over = np.abs(rounded) > largest
        rounded[over] = np.copysign(np.inf, rounded[over])
    small = size < smallest
    if small.any():
        rounded[small] = np.copysign(0.0, rounded[small])
    return rounded


def _round_single(x: Array, smallest: float) -> Array:
    """As `round_to` does, by the processor's own conversion."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded: Array = x.astype(np.float32).astype(np.float64)
    # Half a step of the next lower binade below the smallest number still rounds up to it.
    small = np.abs(x) < smallest * (1 - 2.0**-25)
    if small.any():
        rounded[small] = np.copysign(0.0, rounded[small])
    undefined = np.isnan(rounded)
    if undefined.any():
        rounded[undefined] = np.inf
    return rounded


def round_mantissa(x: Array, bits: int) -> Array:
    """float64 rounded to 1 + `bits` significant bits, nearest even, with float64's range of exponents; a new array."""
    drop = _DOUBLE_MANTISSA - bits
    if drop <= 0:
        return x.astype(np.float64, copy=True)
    codes = np.asarray(x, np.float64, order="C").reshape(-1).view(np.int64)
    odd = (codes >> drop) & 1
    odd += codes
    odd += (1 << (drop - 1)) - 1
    odd &= -(1 << drop)
    rounded: Array = odd.view(np.float64).reshape(x.shape)
    return rounded


class Blocked(NamedTuple):
    """Block floats as float64; step: that of the finest block, of which all are multiples (inf if all are 0)."""

    values: Array
    step: float


def round_blocks(x: Array, axis: int, block: int, mantissa: int) -> Blocked:
    """Block float: every `block` consecutive numbers along the axis share the exponent of their largest.

    The largest keeps 1 + `mantissa` significant bits and the others are multiples of its last bit, nearest even. The
    last block of an axis may be shorter. A block that holds an infinity or NaN stays as it is.
    """
    moved = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    length = moved.shape[-1]
    filled = -length % block
    if filled:
        moved = np.concatenate([moved, np.zeros((*moved.shape[:-1], filled))], axis=-1)
    blocks = moved.reshape(*moved.shape[:-1], -1, block)
    top = np.max(np.abs(blocks), axis=-1)
    finite = np.isfinite(top)
    _, exponent = np.frexp(np.where(finite, top, 0.0))
    step = np.ldexp(1.0, exponent - 1 - mantissa)
    rounded = np.rint(blocks * (1 / step)[..., None]) * step[..., None]
    if not finite.all():
        rounded = np.where(finite[..., None], rounded, blocks)
    steps = step[(top > 0) & finite]
    values = rounded.reshape(*moved.shape)[..., :length]
    return Blocked(np.moveaxis(values, -1, axis), float(steps.min()) if steps.size else float("inf"))
