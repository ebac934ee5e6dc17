"""fuse-hard-swish: its two forms."""

from __future__ import annotations

import pytest
from pass_settings import assert_rewritten
from support import assert_stays

PASS = "fuse-hard-swish"
HEAD = """<ir_version: 10, opset_import: ["" : {opset}]>
agraph (float[N,3] x) => (float[N,3] y)
<float zero = {{0.0}}, float three = {{3.0}}, float six = {{6.0}}, float sixth = {{0.16666667}}> {{ {lines} }}"""
CLIPPED = "a = Add(x, three) c = Clip(a, zero, six)"


def graph(lines: str, opset: int = 14) -> str:
    return HEAD.format(opset=opset, lines=lines)


@pytest.mark.parametrize(
    "lines",
    [
        "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(x, h)",
        f"{CLIPPED} m = Mul(x, c) y = Div(m, six)",
        f"{CLIPPED} m = Mul(c, x) y = Mul(sixth, m)",
        f"{CLIPPED} m = Mul(c, sixth) y = Mul(x, m)",
        f"{CLIPPED} m = Mul(x, sixth) y = Mul(c, m)".replace("Add(x, three)", "Add(three, x)"),
    ],
)
def test_hard_swish(lines: str) -> None:
    assert_rewritten(graph(lines), ["HardSwish"], PASS)


@pytest.mark.parametrize(
    "lines",
    [
        "h = HardSigmoid (x) y = Mul(x, h)",
        "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(three, h)",
        f"{CLIPPED} m = Mul(x, c) y = Div(m, three)",
        f"{CLIPPED} m = Mul(x, c) y = Div(six, m)",
        f"{CLIPPED} y = Mul(x, c)",
        "a = Add(x, six) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
    ],
)
def test_other_products_stay(lines: str) -> None:
    assert_stays(graph(lines), PASS)


def test_before_opset_14_it_stays() -> None:
    assert_stays(graph("h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(x, h)", 13), PASS)


@pytest.mark.parametrize("name", ["three", "six"])
def test_a_constant_that_gives_the_result_more_dims_stays(name: str) -> None:
    text = graph(f"{CLIPPED.replace('six', 'top')} m = Mul(x, c) y = Div(m, six)").replace(
        "(float[N,3] y)", "(float[1,N,3] y)"
    )
    text = text.replace("<float zero", "<float top = {6.0}, float zero")
    assert_stays(text.replace(f"float {name} =", f"float[1,1,1] {name} ="), PASS)
