"""Sums whose rounded result does not depend on the order of summation, nor on the library that forms them.

A float64 sum is off by at most n·2^-53 of the sum of magnitudes. Where that can move the result across a rounding
boundary of the accumulator's format, it is formed again exactly (math.fsum). So a machine that adds partial sums
of cells, and a plain matrix product, store the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray
Rounding = Callable[[Array], Array]

_UNIT = 2.0**-53
_EXACT = 2.0**52  # a sum of multiples of one step below so many steps is exact in float64, in any order
_ROWS = 4096  # doubtful sums looked at together


def rounded_sum(total: Array, terms: Array, rounding: Rounding) -> Array:
    """`total`, the sum of `terms` over their last axis in some order, rounded: any order gives the same."""
    size = np.sum(np.abs(terms), axis=-1)
    error = size * (2 * terms.shape[-1] * _UNIT)
    result, doubtful = _round_apart(total, error, rounding)
    if doubtful.any():
        exact = [math.fsum(row) for row in terms[doubtful].tolist()]
        result[doubtful] = rounding(np.array(exact))
    return result


def rounded_product(total: Array, a: Array, b: Array, steps: tuple[float, float], rounding: Rounding) -> Array:
    """`total` = a [batch, m, k] · b [batch, k, n], summed in some order, rounded: any order gives the same.

    Products of single numbers must be exact in float64 (24 significant bits each). steps: numbers of which all of a,
    of b, are multiples.
    """
    # Overflow and NaN make no doubt: they come out alike in any order.
    norm_a = np.sqrt(np.sum(a * a, axis=-1))[..., :, None]
    norm_b = np.sqrt(np.sum(b * b, axis=-2))[..., None, :]
    step = steps[0] * steps[1]
    largest = float(norm_a.max(initial=0.0)) * float(norm_b.max(initial=0.0))
    if largest < _EXACT * step or largest == 0:
        return rounding(total)
    error = (norm_a * (2 * a.shape[-1] * _UNIT)) * norm_b
    error[(norm_a * norm_b) < _EXACT * step] = 0.0
    result, doubtful = _round_apart(total, error, rounding)
    places = np.argwhere(doubtful)
    columns = np.swapaxes(b, -1, -2)
    for start in range(0, len(places), _ROWS):
        batch, row, column = places[start : start + _ROWS].T
        terms = a[np.minimum(batch, a.shape[0] - 1), row] * columns[np.minimum(batch, b.shape[0] - 1), column]
        result[batch, row, column] = rounded_sum(terms.sum(axis=-1), terms, rounding)
    return result


def _round_apart(total: Array, error: Array, rounding: Rounding) -> tuple[Array, Array]:
    """The rounded totals, and where the error leaves two roundings possible."""
    result = rounding(total)
    doubtful = (rounding(total - error) != rounding(total + error)) & np.isfinite(total)
    return result, doubtful
