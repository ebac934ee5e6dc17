"""simplify-bounds, fuse-pad and replace-einsum: the same in one operator."""

from __future__ import annotations

import numpy as np
import pytest
from pass_settings import assert_rewritten
from support import assert_same_numbers, assert_stays, model, run_passes

NUMBERS = """f = Constant <value = float {2.5}> () g = Constant <value = float {-1}> ()
    h = Constant <value = float {4}> () o = Constant <value = float {0}> ()"""
ELEMENTS = "agraph (float[3,4] x, float[3,4] z, int64[3,4] n) => (float[3,4] y) {{ {} {} }}"
BOUNDS = {
    "min": ("a = Min(x, f) y = Min(h, a)", ["Min"]),
    "max": ("a = Max(f, x) y = Max(a, g)", ["Max"]),
    "clip": ("a = Clip(x, g, f) y = Clip(a, f, h)", ["Clip"]),
    "max, then min": ("a = Max(x, g) y = Min(a, h)", ["Clip"]),
    "min, then max": ("a = Min(f, x) y = Max(g, a)", ["Clip"]),
    "the lower bound wins": ("a = Max(x, h) y = Min(a, f)", ["Clip"]),
    "relu, then clip": ("a = Relu(x) y = Clip(a, g, f)", ["Clip"]),
    "clip, then relu": ("a = Clip(x, g) y = Relu(a)", ["Clip"]),
    "relu, then max": ("a = Relu(x) y = Max(a, f)", ["Max"]),
    "max, then relu": ("a = Max(x, g) y = Relu(a)", ["Relu"]),
    "integers": (
        "i = Constant <value = int64 {1}> () j = Constant <value = int64 {2}> () a = Max(n, i) b = Min(a, j) "
        "y = Cast <to = 1> (b)",
        ["Clip", "Cast"],
    ),
}


@pytest.mark.parametrize(("lines", "expected"), BOUNDS.values(), ids=list(BOUNDS))
def test_bounds(lines: str, expected: list[str]) -> None:
    assert_rewritten(ELEMENTS.format(NUMBERS, lines), expected, "simplify-bounds")


@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "integers"])
def test_not_a_number_and_infinities_stay(name: str) -> None:
    text = ELEMENTS.format(NUMBERS, BOUNDS[name][0])
    special = np.array([np.nan, np.inf, -np.inf, -0.0] * 3, np.float32).reshape(3, 4)
    feeds = {"x": special, "z": special, "n": np.zeros((3, 4), np.int64)}
    assert_same_numbers(model(text), run_passes(text, "simplify-bounds"), [feeds])


@pytest.mark.parametrize(
    "lines",
    [
        "a = Clip(x, h, f) y = Clip(a, f, h)",  # no order of the bounds
        "a = Max(x, z) y = Min(a, f)",
        "a = Max(x, f, g) y = Min(a, h)",
    ],
)
def test_other_bounds_stay(lines: str) -> None:
    assert_stays(ELEMENTS.format(NUMBERS, lines), "simplify-bounds")


PADS = "q = Constant <value = int64[8] {0, 0, 1, 0, 0, 0, 2, 1}> ()"
W = "w = Constant <value = float[4,2,1,1] {1, 2, -3, 0.5, 4, -1, 2, 0.25}> ()"
IMAGES = "agraph (float[N,2,5,6] x) => (float[N,K,H,U] y) {{ {} }}"
PADDED = {
    "convolution": (f"{W} {PADS} a = Pad(x, q) y = Conv(a, w)", ["Conv"]),
    "padded convolution": (f"{W} {PADS} a = Pad(x, q) y = Conv <pads = [1, 0, 0, 2]> (a, w)", ["Conv"]),
    "average": (f"{PADS} a = Pad(x, q) y = AveragePool <kernel_shape = [3, 3]> (a)", ["AveragePool"]),
    "average that counts": (
        f"{PADS} a = Pad(x, q) y = AveragePool <kernel_shape = [4, 4], pads = [1, 1, 1, 1], count_include_pad = 1> (a)",
        ["AveragePool"],
    ),
    "maximum": (
        f"{PADS} z = Constant <value = float {{0}}> () i = Constant <value = float {{-1}}> () c = Div(i, z) "
        "a = Pad(x, q, c) y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (a)",
        ["MaxPool"],
    ),
    "padding": (f"{PADS} c = Constant <value = float {{3}}> () a = Pad(x, q, c) y = Pad(a, q, c)", ["Pad"]),
}


@pytest.mark.parametrize(("lines", "expected"), PADDED.values(), ids=list(PADDED))
def test_padding_goes_into_its_reader(lines: str, expected: list[str]) -> None:
    assert_rewritten(IMAGES.format(lines), expected, "fold-constants", "fuse-pad")


@pytest.mark.parametrize(
    "lines",
    [
        f"{W} {PADS} c = Constant <value = float {{1}}> () a = Pad(x, q, c) y = Conv(a, w)",
        f'{W} {PADS} a = Pad <mode = "edge"> (x, q) y = Conv(a, w)',
        f"{PADS} a = Pad(x, q) y = MaxPool <kernel_shape = [3, 3]> (a)",
        f"{PADS} a = Pad(x, q) y = AveragePool <kernel_shape = [2, 2]> (a)",  # a window in the padding alone
        f"{PADS} a = Pad(x, q) y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)",
        f"{PADS} a = Pad(x, q) y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (a)",
        f"{PADS} c = Constant <value = float {{3}}> () a = Pad(x, q, c) y = Pad(a, q)",
        "q = Constant <value = int64[8] {0, 1, 0, 0, 0, 0, 0, 0}> () "
        "a = Pad(x, q) y = AveragePool <kernel_shape = [3, 3]> (a)",
    ],
)
def test_other_padding_stays(lines: str) -> None:
    assert_stays(IMAGES.format(lines), "fuse-pad")


EINSUMS = {
    "ij,jk->ik": ("2,3", "3,4", "2,4", "MatMul"),
    "bij,bjk->bik": ("5,2,3", "5,3,4", "5,2,4", "MatMul"),
    "jk,ij->ik": ("3,4", "2,3", "2,4", "MatMul"),
    "bij,jk->bik": ("5,2,3", "3,4", "5,2,4", "MatMul"),
    "ij,bjk->bik": ("2,3", "5,3,4", "5,2,4", "MatMul"),
    "bij,abjk->abik": ("5,2,3", "6,5,3,4", "6,5,2,4", "MatMul"),
    "aij,abjk->abik": ("6,2,3", "6,5,3,4", "6,5,2,4", "Einsum"),
    "jk,abij->abik": ("3,4", "5,6,2,3", "5,6,2,4", "MatMul"),
    "ij,kj->ik": ("2,3", "4,3", "2,4", "Gemm"),
    "ji,jk": ("3,2", "3,4", "2,4", "Gemm"),
    "ji,kj->ik": ("3,2", "4,3", "2,4", "Gemm"),
    "ij , jk -> ki": ("2,3", "3,4", "4,2", "Gemm"),
    "bij,bkj->bik": ("5,2,3", "5,4,3", "5,2,4", "Einsum"),
    "ij,ij->i": ("2,3", "2,3", "2", "Einsum"),
    "ij,jk->i": ("2,3", "3,4", "2", "Einsum"),
    "...ij,...jk->...ik": ("2,3", "3,4", "2,4", "Einsum"),
    "ij,kl->ijkl": ("2,3", "4,5", "2,3,4,5", "Einsum"),
}


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum_of_two(equation: str) -> None:
    a, b, c, expected = EINSUMS[equation]
    text = f'agraph (float[{a}] a, float[{b}] b) => (float[{c}] c) {{ c = Einsum <equation = "{equation}"> (a, b) }}'
    assert_rewritten(text, [expected], "replace-einsum")


@pytest.mark.parametrize(
    ("equation", "shape", "expected"),
    [("ijk->kij", "4,2,2", "Transpose"), ("ijk->ij", "2,2", "Einsum"), ("iij->ij", "2,4", "Einsum")],
)
def test_einsum_of_one(equation: str, shape: str, expected: str) -> None:
    text = f'agraph (float[2,2,4] a) => (float[{shape}] c) {{ c = Einsum <equation = "{equation}"> (a) }}'
    assert_rewritten(text, [expected], "replace-einsum")


def test_a_shared_dim_that_may_be_one_stays() -> None:
    assert_stays(
        'agraph (float[2,J] a, float[K,4] b) => (float[2,4] c) { c = Einsum <equation = "ij,jk->ik"> (a, b) }',
        "replace-einsum",
    )


@pytest.mark.parametrize("number", [2**63 - 1, 2**63 - 5, 2**53 + 1, -(2**63)])
@pytest.mark.parametrize("second", ["Min(a, k)", "Max(a, k)", "Clip(a, k)", "Max(a, one)", "Clip(a, one, k)"])
def test_integers_that_no_float_holds(number: int, second: str) -> None:
    for first in ("Min(x, k)", "Max(x, k)", "Clip(x, k)", "Max(x, one)"):
        text = f"""agraph (int64[4] x) => (int64[4] y) <int64 k = {{{number}}}, int64 one = {{1}}>
            {{ a = {first} y = {second} }}"""
        x = np.array([-(2**63), 3, 2**53 + 2, 2**63 - 1])
        assert_same_numbers(model(text), run_passes(text, "simplify-bounds"), [{"x": x}])


def test_bounds_at_the_largest_floats_hold_infinities() -> None:
    text = """agraph (float[3] x) => (float[3] y) <float low = {-3.4028235e38}, float high = {3.4028235e38}>
        { a = Max(x, low) y = Min(a, high) }"""
    x = np.array([-np.inf, np.inf, 1], np.float32)
    assert_same_numbers(model(text), run_passes(text), [{"x": x}])


def test_integers_that_are_one_as_floats_are_two_fillings() -> None:
    assert_stays(
        """agraph (int64[4] x) => (int64[8] y) <int64[2] p = {1, 1}, int64 a = {9007199254740992},
        int64 b = {9007199254740993}> { t = Pad(x, p, a) y = Pad(t, p, b) }""",
        "fuse-pad",
    )
