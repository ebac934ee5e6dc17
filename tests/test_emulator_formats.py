"""Rounding to the machine's number formats, against their definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pfvm.compiler.plan.machine import Dtype, load_machine
from pfvm.runtime.emulator.formats import range_of, round_blocks, round_mantissa, round_to
from pfvm.runtime.emulator.sums import rounded_product, rounded_sum

MACHINE = load_machine()
HALF, FLOAT = MACHINE.dtypes["Half"], MACHINE.dtypes["Float"]
TINY = Dtype(lanes=1, exponent=3, mantissa=2, bias=3, source="a format small enough to list")


def numbers(dtype: Dtype) -> list[float]:
    """All positive numbers of a format, smallest first."""
    top = 2**dtype.exponent - 1
    return [
        (1 + f / 2**dtype.mantissa) * 2.0 ** (e - dtype.bias) for e in range(1, top) for f in range(2**dtype.mantissa)
    ]


@pytest.mark.parametrize("dtype", [HALF, TINY], ids=["1-6-9", "1-3-2"])
def test_every_number_of_a_format_is_kept_and_what_lies_between_goes_to_the_nearest(dtype):
    all_of_them = np.array(numbers(dtype))
    assert np.array_equal(round_to(all_of_them, dtype), all_of_them)
    assert np.array_equal(round_to(-all_of_them, dtype), -all_of_them)
    low, high = all_of_them[:-1], all_of_them[1:]
    middle = (low + high) / 2  # exact
    even = np.where(np.arange(len(low)) % 2 == 0, low, high)  # mantissas count up: every second one is even
    assert np.array_equal(round_to(middle, dtype), even)
    assert np.array_equal(round_to(np.nextafter(middle, 0), dtype), low)
    assert np.array_equal(round_to(np.nextafter(middle, np.inf), dtype), high)


def test_half_is_what_the_machine_says():
    assert range_of(6, 9, 31) == (2.0**-30, (2 - 2.0**-9) * 2.0**31)
    assert round_to(np.array([1.0, 2.0**-31, -(2.0**-40)]), HALF).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [HALF, FLOAT, TINY], ids=["1-6-9", "1-8-23", "1-3-2"])
def test_too_large_is_infinite_too_small_is_zero_undefined_is_infinite(dtype):
    smallest, largest = range_of(dtype.exponent, dtype.mantissa, dtype.bias)
    step = largest * 2.0**-dtype.mantissa / 2  # half a step of the top binade, about
    got = round_to(
        np.array([largest, largest + step, -2 * largest, math.nan, smallest * 0.75, -smallest * 0.25]), dtype
    )
    assert got[0] == largest and got[1] == math.inf and got[2] == -math.inf and got[3] == math.inf
    assert got[4] == 0 and got[5] == 0 and math.copysign(1, got[5]) == -1
    assert round_to(np.array([smallest * (1 - 2.0**-30)]), dtype)[0] == smallest  # its mantissa rounds up to it


def definition(x: float, dtype: Dtype) -> float:
    """Rounding by the words of `round_to`'s docstring, one number at a time."""
    if x == 0 or math.isinf(x):
        return x
    mantissa, exponent = math.frexp(x)
    scale = 2.0 ** (dtype.mantissa + 1)
    rounded = math.ldexp(round(mantissa * scale) / scale, exponent)
    smallest, largest = range_of(dtype.exponent, dtype.mantissa, dtype.bias)
    if abs(rounded) < smallest:
        return math.copysign(0.0, x)
    return math.copysign(math.inf, x) if abs(rounded) > largest else rounded


@settings(deadline=None)
@given(st.floats(allow_nan=False, min_value=-1e60, max_value=1e60))
def test_rounding_is_its_definition(x):
    for dtype in (HALF, FLOAT, TINY):
        assert round_to(np.array([x]), dtype)[0] == definition(x, dtype)


def test_near_the_smallest_single_the_fast_path_is_the_definition():
    base = 2.0**-126
    x = np.array([base * (1 + k * 2.0**-27) for k in range(-40, 40)] + [base / 2, base / 4, 2.0**-149])
    assert round_to(x, FLOAT).tolist() == [definition(v, FLOAT) for v in x]


@settings(deadline=None)
@given(arrays(np.float64, (3, 37), elements=st.floats(-1e6, 1e6, width=32)))
def test_a_block_keeps_its_largest_and_rounds_the_others_to_its_last_bit(x):
    x = round_to(x, HALF)
    blocked = round_blocks(x, 1, 16, HALF.mantissa)
    for row, result in zip(x, blocked.values):
        for start in range(0, 37, 16):
            block, got = row[start : start + 16], result[start : start + 16]
            top = np.abs(block).max()
            if top == 0:
                assert not got.any()
                continue
            step = 2.0 ** (math.frexp(top)[1] - 1 - HALF.mantissa)
            assert step >= blocked.step
            assert np.array_equal(got, [round(v / step) * step for v in block])
            assert np.abs(got).max() == top


def test_blocks_lie_along_any_axis():
    x = np.random.default_rng(0).standard_normal((40, 3))
    assert np.array_equal(round_blocks(x, 0, 16, 9).values, round_blocks(x.T, 1, 16, 9).values.T)


def single(x):
    return round_to(x, FLOAT)


@pytest.mark.parametrize("seed", range(5))
def test_a_rounded_sum_does_not_depend_on_the_order(seed):
    rng = np.random.default_rng(seed)
    terms = single(rng.standard_normal((200, 300)) * np.exp(rng.standard_normal((200, 300)) * 8))
    terms[:, 150:] = -terms[:, :150] * (1 + rng.integers(0, 2, (200, 150)) * 2.0**-23)  # much of it cancels
    exact = single(np.array([math.fsum(row) for row in terms]))
    for _ in range(3):
        order = rng.permutation(300)
        shuffled = terms[:, order]
        parts = shuffled.reshape(200, 20, 15).sum(axis=2).sum(axis=1)
        assert np.array_equal(rounded_sum(parts, shuffled, single), exact)


@pytest.mark.parametrize("bits", [9, 23])
def test_a_rounded_product_does_not_depend_on_how_it_was_summed(bits):
    rng = np.random.default_rng(bits)
    a = round_mantissa(rng.standard_normal((1, 30, 256)) * (rng.random((1, 30, 256)) > 0.5), bits)
    b = round_mantissa(rng.standard_normal((1, 256, 40)) * (rng.random((1, 256, 40)) > 0.5), bits)
    a[0, 1, :128], b[0, 128:, 2] = 0, 0  # a sum of nothing but zeros
    steps = (1e-12, 1e-12)
    whole = rounded_product(a @ b, a, b, steps, single)
    cells = sum(a[:, :, i::16] @ b[:, i::16] for i in range(16))  # partial sums of 16 cells
    assert np.array_equal(rounded_product(cells, a, b, steps, single), whole)
    exact = [[math.fsum(a[0, i] * b[0, :, j]) for j in range(40)] for i in range(30)]
    assert np.array_equal(whole[0], single(np.array(exact)))
