"""fuse-scale: what scales a product by constants is in its weights."""

from __future__ import annotations

import pytest
from pass_settings import assert_rewritten
from support import assert_stays

PASS = "fuse-scale"
WEIGHTS = "float[3,4] w = {{" + ", ".join(str(i % 7 - 3) for i in range(12)) + "}}"
PRODUCT = f"""agraph (float{{x}} x) => (float{{y}} y)
<{WEIGHTS}, float[4,3] v = {{{{1, -2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}}}, float[3] k = {{{{2, 0.5, -1}}}},
 float[4] m = {{{{1, 2, -3, 4}}}}, float[4] var = {{{{1, 2, 3, 4}}}}, float two = {{{{2}}}}> {{{{ {{lines}} }}}}"""


def graph(lines: str, x: str = "[N,3]", y: str = "[N,4]") -> str:
    return PRODUCT.format(lines=lines, x=x, y=y)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("s = Mul(x, k) y = MatMul(s, w)", "MatMul"),
        ("s = Div(x, k) y = MatMul(s, w)", "MatMul"),
        ("s = Mul(two, x) y = Gemm(s, w, m)", "Gemm"),
        ("s = Mul(k, x) y = Gemm<transB = 1, alpha = 0.5>(s, v)", "Gemm"),
        ("p = MatMul(x, w) y = Mul(p, m)", "MatMul"),
        ("p = MatMul(x, w) y = Div(p, two)", "MatMul"),
        ("p = Gemm<beta = 0.5>(x, w, m) y = Mul(var, p)", "Gemm"),
        ("p = Gemm<transB = 1>(x, v, two) y = Div(p, m)", "Gemm"),
        ("p = Gemm(x, w, m) y = Add(p, var)", "Gemm"),
        ("p = Gemm(x, w, m) y = Sub(p, two)", "Gemm"),
        ("p = Gemm(x, w, m) y = BatchNormalization(p, var, m, m, var)", "Gemm"),
        ("p = MatMul(x, w) y = BatchNormalization<epsilon = 0.1>(p, m, m, var, var)", "Gemm"),
    ],
)
def test_a_product_takes_in_its_scale(lines: str, left: str) -> None:
    assert_rewritten(graph(lines), [left], PASS)


def test_products_of_more_dims() -> None:
    assert_rewritten(graph("p = MatMul(x, w) y = Mul(p, m)", "[N,5,3]", "[N,5,4]"), ["MatMul"], PASS)
    assert_rewritten(graph("p = Mul(x, k) y = MatMul(p, w)", "[N,5,3]", "[N,5,4]"), ["MatMul"], PASS)


CONV = """agraph (float[N,4,5,5] x) => (float[N,2,{s}] y)
<float[2,{c},1,1] w = {{{w}}}, float[4,1,1] k = {{2, 3, 0.5, -1}}, float[5] row = {{1, 2, 3, 4, 5}}> {{ {lines} }}"""


@pytest.mark.parametrize(("group", "channels", "weights"), [(1, 4, "1, 2, 3, 4, 5, 6, 7, 8"), (2, 2, "1, 2, 3, 4")])
def test_a_convolution_takes_in_the_scale_before_it(group: int, channels: int, weights: str) -> None:
    lines = f"s = Mul(x, k) y = Conv<group = {group}, pads = [1, 1, 1, 1]>(s, w)"
    assert_rewritten(CONV.format(s="7,7", c=channels, w=weights, lines=lines), ["Conv"], PASS)


@pytest.mark.parametrize(
    "lines",
    [
        "s = Mul(x, x) y = MatMul(s, w)",
        "s = Div(k, x) y = MatMul(s, w)",
        "p = MatMul(x, w) y = Div(m, p)",
        "s = Add(x, k) y = MatMul(s, w)",
        "z = Constant<value = float[4] {0, 1, 1, 1}>() p = MatMul(x, w) y = Div(p, z)",  # the numbers may be zeros
    ],
)
def test_others_stay(lines: str) -> None:
    assert_stays(graph(lines), PASS)


def test_the_half_of_a_gelu_stays() -> None:
    lines = "e = Erf(x) t = Add(e, two) g = Mul(x, t) s = Mul(g, two) y = MatMul(s, w)"
    assert_stays(graph(lines), PASS)


def test_a_scale_along_another_dim_stays() -> None:
    lines = "s = Mul(x, row) y = Conv(s, w)"
    assert_stays(CONV.format(s="5,5", c=4, w="1, 2, 3, 4, 5, 6, 7, 8", lines=lines), PASS)


@pytest.mark.parametrize("lines", ["s = Mul(x, big) y = MatMul(s, w)", "p = MatMul(x, w) y = Mul(p, big)"])
def test_a_scale_with_which_sums_overflow_stays(lines: str) -> None:
    assert_stays(graph(lines).replace("float two", "float big = {1e20}, float two"), PASS)


@pytest.mark.parametrize("x", ["[5,1]", "[N,M]"])
def test_a_scale_that_widens_what_it_scales_stays(x: str) -> None:
    assert_stays(graph("s = Mul(x, k) y = MatMul(s, w)", x=x, y="[N,4]" if "N" in x else "[5,4]"), PASS)
