"""fuse-gelu: the two forms with their factors in any order, and constants that are only nearly those."""

from __future__ import annotations

import math

import pytest
from pass_settings import assert_rewritten
from support import assert_stays, ops, run_passes

PASS = "fuse-gelu"
HEAD = """<ir_version: 10, opset_import: ["" : {opset}]>
agraph (float[N,3] x) => (float[N,3] y)
<float root = {{1.41421356}}, float inv = {{0.70710678}}, float one = {{1.0}}, float half = {{0.5}},
 float two = {{2.0}}, float three = {{3.0}}, float cubic = {{0.044715}}, float[1] c = {{{c}}}> {{ {lines} }}"""
ERF = "d = Div(x, root) e = Erf(d) t = Add(e, one)"
CUBE = "p = Pow(x, three) q = Mul(p, cubic) s = Add(x, q) u = Mul(s, c)"
ENDS = [
    "m = Mul(x, t) y = Mul(m, half)",
    "m = Mul(half, x) y = Mul(t, m)",
    "m = Mul(t, half) y = Mul(x, m)",
    "m = Mul(x, t) y = Div(m, two)",
]


def graph(lines: str, opset: int = 20, c: float = math.sqrt(2 / math.pi)) -> str:
    return HEAD.format(opset=opset, lines=lines, c=c)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        *((ERF, end) for end in ENDS),
        (ERF.replace("Div(x, root)", "Mul(inv, x)"), ENDS[0]),
        (ERF.replace("Add(e, one)", "Add(one, e)"), ENDS[1]),
    ],
)
def test_by_the_error_function(start: str, end: str) -> None:
    assert_rewritten(graph(f"{start} {end}"), ["Gelu"], PASS)


@pytest.mark.parametrize(
    ("inner", "end"),
    list(
        zip(
            [
                CUBE,
                CUBE.replace("p = Pow(x, three)", "o = Mul(x, x) p = Mul(o, x)").replace(
                    "Mul(p, cubic)", "Mul(cubic, p)"
                ),
                "a = Mul(x, c) b = Mul(cubic, x) g = Mul(b, x) h = Add(one, g) u = Mul(a, h)",
                "a = Pow(x, two) g = Mul(a, cubic) h = Add(g, one) b = Mul(x, h) u = Mul(c, b)",
            ],
            ENDS,
            strict=True,
        )
    ),
)
def test_by_tanh(inner: str, end: str) -> None:
    assert_rewritten(graph(f"{inner} v = Tanh(u) t = Add(v, one) {end}"), ["Gelu"], PASS)


def test_the_half_may_stand_inside_the_sum() -> None:
    assert_rewritten(
        graph("d = Div(x, root) e = Erf(d) m = Mul(e, half) t = Add(m, half) y = Mul(t, x)"), ["Gelu"], PASS
    )


def test_a_sum_of_another_domain_stays() -> None:
    text = graph("d = Div(x, root) e = Erf(d) h = Mul(e, half) s = my.Add(h, half) y = Mul(x, s)")
    assert "Gelu" not in ops(run_passes(text.replace('"" : 20', '"" : 20, "my" : 1'), PASS))


def test_x_may_be_a_product_itself() -> None:
    lines = f"z = Mul(x, three) {ERF.replace('x', 'z')} m = Mul(z, t) y = Mul(m, half)"
    assert_rewritten(graph(lines), ["Mul", "Gelu"], PASS)


@pytest.mark.parametrize(
    "lines",
    [
        f"{ERF} y = Mul(x, t)",
        f"{ERF} m = Mul(x, t) y = Mul(m, two)",
        f"{ERF} m = Mul(d, t) y = Mul(m, half)",
        f"{ERF} m = Mul(x, t) n = Mul(m, x) y = Mul(n, half)",
        f"{ERF.replace('root', 'cubic')} m = Mul(x, t) y = Mul(m, half)",
        f"{ERF.replace('Div(x, root)', 'Div(root, x)')} m = Mul(x, t) y = Mul(m, half)",
        f"{CUBE.replace('three', 'two')} v = Tanh(u) t = Add(v, one) m = Mul(x, t) y = Mul(m, half)",
    ],
)
def test_other_products_stay(lines: str) -> None:
    assert_stays(graph(lines), PASS)


@pytest.mark.parametrize(("c", "stays"), [(0.79788455, False), (0.7978847, True), (0.798, True)])
def test_constants_are_those_of_float(c: float, stays: bool) -> None:
    text = graph(f"{CUBE} v = Tanh(u) t = Add(v, one) m = Mul(x, t) y = Mul(m, half)", c=c)
    if stays:
        assert_stays(text, PASS)
    else:
        assert_rewritten(text, ["Gelu"], PASS)


def test_before_opset_20_and_in_double_it_stays() -> None:
    lines = f"{ERF} {ENDS[0]}"
    assert_stays(graph(lines, 19), PASS)
    assert "Erf" in ops(run_passes(graph(lines).replace("float", "double"), PASS))


@pytest.mark.parametrize("name", ["root", "one", "half"])
def test_a_constant_that_gives_the_result_more_dims_stays(name: str) -> None:
    text = graph(f"{ERF} {ENDS[0]}").replace("(float[N,3] y)", "(float[1,N,3] y)")
    assert_stays(text.replace(f"float {name} =", f"float[1,1,1] {name} ="), PASS)
    assert_rewritten(graph(f"{ERF} {ENDS[0]}").replace(f"float {name} =", f"float[1,1] {name} ="), ["Gelu"], PASS)
