"""fuse-layer-norm and fuse-rms-norm: written out by steps in any order, and what is not quite such a norm."""

from __future__ import annotations

import pytest
from pass_settings import assert_rewritten
from support import assert_same_numbers, assert_stays, model, ops, run_passes

LAYER, RMS = "fuse-layer-norm", "fuse-rms-norm"
HEAD = """<ir_version: 10, opset_import: ["" : {opset}]>
agraph (float[N,3,4] x) => (float[N,3,4] y)
<float[4] scale = {{0.5, 1.5, -2.0, 3.0}}, float[4] bias = {{1.0, -1.0, 0.5, 2.0}}, float eps = {{0.001}},
 float two = {{2.0}}, float one = {{1.0}}, int64[1] last = {{-1}}> {{ {lines} }}"""
CENTER = "m = ReduceMean(x, last) d = Sub(x, m)"
SPREAD = "p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e)"
AFFINE = "n = Div(d, s) k = Mul(n, scale) y = Add(k, bias)"
SQUARES = "p = Pow(x, two) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e)"


def graph(lines: str, opset: int = 18) -> str:
    return HEAD.format(opset=opset, lines=lines)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (f"{CENTER} {SPREAD} {AFFINE}", []),
        (f"{CENTER} {SPREAD} {AFFINE}".replace("Pow(d, two)", "Mul(d, d)").replace("Add(v, eps)", "Add(eps, v)"), []),
        (f"{CENTER} d2 = Sub(x, m) {SPREAD} {AFFINE}".replace("Pow(d,", "Pow(d2,"), []),
        (f"{CENTER} {SPREAD} r = Reciprocal(s) n = Mul(r, d) k = Mul(scale, n) y = Add(bias, k)", []),
        (f"{CENTER} {SPREAD} r = Div(one, s) n = Mul(d, r) k = Mul(scale, n) y = Add(bias, k)", []),
        (f"{CENTER} {SPREAD} n = Div(d, s) y = Mul(n, scale)", []),
        (f"{CENTER} {SPREAD} y = Div(d, s)", []),
        (f"{CENTER} {SPREAD} n = Div(d, s) y = Mul(n, two)", ["Mul"]),
    ],
)
def test_layer_norm(lines: str, left: list[str]) -> None:
    assert_rewritten(graph(lines), ["LayerNormalization", *left], LAYER)


@pytest.mark.parametrize(
    "lines",
    [
        f"{CENTER} {SPREAD} {AFFINE}".replace("Div(d, s)", "Div(x, s)"),
        f"{CENTER} {SPREAD} {AFFINE}".replace("Sub(x, m)", "Sub(m, x)"),
        f"{CENTER} {SPREAD} {AFFINE}".replace("Div(d, s)", "Div(s, d)"),
        f"{CENTER} {SPREAD} {AFFINE}".replace("Pow(d, two)", "Pow(d, one)"),
        f"{CENTER} {SPREAD} {AFFINE}".replace("v = ReduceMean(p, last)", "v = ReduceMean <keepdims = 1> (p)"),
        f"{CENTER} {SPREAD} {AFFINE}".replace("Add(v, eps)", "Add(v, scale)"),
        "f = Constant <value = int64[1] {1}> () m = ReduceMean(x, f) d = Sub(x, m) p = Mul(d, d) "
        "v = ReduceMean(p, f) e = Add(v, eps) s = Sqrt(e) y = Div(d, s)",
    ],
)
def test_what_is_no_layer_norm_stays(lines: str) -> None:
    assert_same_numbers(model(graph(lines)), run_passes(graph(lines), LAYER))
    assert "LayerNormalization" not in ops(run_passes(graph(lines), LAYER))


def test_the_operator_must_exist() -> None:
    lines = (
        "p = Pow(x, two) v = ReduceMean <axes = [-1]> (p) e = Add(v, eps) s = Sqrt(e) n = Div(x, s) y = Mul(n, scale)"
    )
    assert_stays(graph(lines, 16), LAYER, RMS)
    assert_stays(graph(f"{SQUARES} n = Div(x, s) y = Mul(n, scale)", 22), RMS)


@pytest.mark.parametrize("axes", ["1, 2", "-2, -1", "2, 1", "-1, 1"])
def test_several_axes_are_counted_from_the_end(axes: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[N,3,4] x, float[3,4] scale, float[3,4] bias) => (float[N,3,4] y)
    <float[1] eps = {{0.001}}, float two = {{2.0}}, int64[2] last = {{{axes}}}> {{ {CENTER} {SPREAD} {AFFINE} }}"""
    assert_rewritten(text, ["LayerNormalization"], LAYER)


def test_a_constant_with_leading_ones_is_reshaped_and_a_wider_one_stays_outside() -> None:
    text = graph(f"{CENTER} {SPREAD} {AFFINE}").replace("float[4] scale = ", "float[1,1,4] scale = ")
    assert_rewritten(text, ["LayerNormalization"], LAYER)
    wide = graph(f"{CENTER} {SPREAD} n = Div(d, s) y = Mul(n, other)").replace("x)", "x, float[N,3,4] other)")
    assert_rewritten(wide, ["LayerNormalization", "Mul"], LAYER)


HALF = """<ir_version: 10, opset_import: ["" : {opset}]>
agraph (float16[N,3,4] h, float16[4] scale, float16[4] bias) => (float16[N,3,4] y)
<float eps = {{0.001}}, float two = {{2.0}}, int64[1] last = {{-1}}> {{ x = Cast <to = 1> (h) {lines} }}"""


def test_half_precision_needs_statistics_in_float() -> None:
    lines = f"{CENTER} {SPREAD} q = Div(d, s) n = Cast <to = 10> (q) k = Mul(n, scale) y = Add(k, bias)"
    compiled = run_passes(HALF.format(opset=18, lines=lines), LAYER, "eliminate-dead-code")
    assert ops(compiled) == ["LayerNormalization"]
    lines = f"{SQUARES} q = Div(x, s) n = Cast <to = 10> (q) k = Mul(n, scale) y = Add(k, bias)"
    compiled = run_passes(HALF.format(opset=23, lines=lines), RMS, "eliminate-dead-code")
    assert ops(compiled) == ["RMSNormalization", "Add"]
    narrow = HALF.replace(
        "float eps = {{0.001}}, float two = {{2.0}}", "float16 eps = {{5145}}, float16 two = {{16384}}"
    )
    narrow = narrow.replace("to = 1>", "to = 10>").format(opset=18, lines=f"{CENTER} {SPREAD} {AFFINE}")
    assert "LayerNormalization" not in ops(run_passes(narrow, LAYER))


@pytest.mark.parametrize(
    "lines",
    [
        f"{SQUARES} r = Reciprocal(s) n = Mul(x, r) y = Mul(n, scale)",
        f"{SQUARES} n = Div(x, s) y = Mul(scale, n)",
        f"{SQUARES} y = Div(x, s)".replace("Pow(x, two)", "Mul(x, x)"),
    ],
)
def test_rms_norm(lines: str) -> None:
    assert_rewritten(graph(lines, 23), ["RMSNormalization"], RMS)


@pytest.mark.parametrize("tail", ["n = Div(d, s)", "r = Reciprocal(s) n = Mul(d, r)"])
def test_a_scale_of_ones_and_a_bias_of_zeros_stay_where_a_runtime_knows_the_steps_by_them(tail: str) -> None:
    lines = f"{CENTER} {SPREAD} {tail} k = Mul(n, scale) y = Add(k, bias)".replace(
        "ReduceMean(x, last)", "ReduceMean(x)"
    )
    text = graph(lines.replace("(x)", "<axes = [-1]>(x)").replace("(p, last)", "<axes = [-1]>(p)"), 16)
    text = text.replace("0.5, 1.5, -2.0, 3.0", "1, 1, 1, 1").replace("1.0, -1.0, 0.5, 2.0", "0, 0, 0, 0")
    assert ops(run_passes(text))[-2:] == ["Mul", "Add"]
    text = text.replace("Add(v, eps)", "Exp(v)").replace("Sqrt(e)", "Abs(e)")
    assert ops(run_passes(text))[-1] in ("Div", "Mul") and ops(run_passes(text)).count("Mul") <= 1


@pytest.mark.parametrize("name", ["eps", "two"])
def test_a_constant_that_gives_the_result_more_dims_stays(name: str) -> None:
    text = graph(f"{CENTER} {SPREAD} y = Div(d, s)").replace("(float[N,3,4] y)", "(float[1,N,3,4] y)")
    assert_stays(text.replace(f"float {name} =", f"float[1,1,1,1] {name} ="), LAYER)
    text = graph(f"{SQUARES} y = Div(x, s)", 23).replace("(float[N,3,4] y)", "(float[1,N,3,4] y)")
    assert_stays(text.replace(f"float {name} =", f"float[1,1,1,1] {name} ="), RMS)
