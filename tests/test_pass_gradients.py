"""fuse-cross-entropy-gradient and fuse-relu-gradient: exact forms, NaN and infinities included."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from pfvm.runtime.ort import evaluate
from support import assert_same_numbers, assert_stays, inputs, model, ops, run_passes

LOSS, RELU = ("fuse-cross-entropy-gradient", "eliminate-dead-code"), ("fuse-relu-gradient", "eliminate-dead-code")

HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>'
GRADIENT = """agraph ({t}[4,7] p, int64[4,1] label, {t}[4,1] w) => ({t}[4,7] g) {{
    k = Constant <value = int64[2] {{4, 7}}> () z = ConstantOfShape <value = {t}[1] {{0}}> (k)
    one = Constant <value = {t}[4,1] {{-1, -1, -1, -1}}> () axis = Constant <value = int64[1] {{1}}> ()
    hot = ScatterElements <axis = 1> (z, label, one) m = Mul(hot, w) e = Exp(p)
    s = ReduceSum(m, axis) q = Mul(e, s) {end} }}"""


def gradient(kind: str = "float", end: str = "g = Sub(m, q)", opset: int = 18) -> str:
    return HEADER.format(opset=opset) + GRADIENT.format(t=kind, end=end)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_softmax_less_labels(kind: str) -> None:
    compiled = run_passes(gradient(kind), *LOSS)
    assert ops(compiled) == ["Exp", "Mul", "Neg", "ScatterElements"]
    feeds = inputs(model(gradient(kind)), 0)
    feeds["p"][1, 2], feeds["p"][2, :], feeds["w"][3] = np.nan, -np.inf, np.nan
    a, b = (evaluate(ir.from_proto(each), feeds)["g"] for each in (model(gradient(kind)), compiled))
    np.testing.assert_array_equal(a, b)


def test_half_is_fused_as_well() -> None:
    text = gradient("float16").replace("-1, -1, -1, -1", "48128, 48128, 48128, 48128")  # the bits of -1
    assert ops(run_passes(text, *LOSS)) == ["Exp", "Mul", "Neg", "ScatterElements"]


@pytest.mark.parametrize(
    "text",
    [
        gradient(opset=15),  # no reduction
        gradient(end="t = Neg(m) g = Sub(t, q)"),
        gradient(end="r = Sub(m, q) g = Add(r, m)"),  # the one-hot matrix is needed
        gradient().replace("-1, -1, -1, -1", "-1, -1, -2, -1"),
        gradient().replace("hot = ScatterElements <axis = 1>", 'hot = ScatterElements <axis = 1, reduction = "add">'),
    ],
)
def test_other_gradients_stay(text: str) -> None:
    assert "ReduceSum" in ops(run_passes(text, *LOSS))


RELU_TEXT = "agraph ({t}[3,4] y, {t}[3,4] g) => ({t}[3,4] d) {{ z = Constant <value = {t} {{0}}> () {lines} }}"
PLAIN = "off = LessOrEqual(y, z) d = Where(off, z, g)"


@pytest.mark.parametrize(("kind", "name"), [("float", "ReluGrad"), ("double", "ReluGradDouble")])
def test_relu_gradient_is_one_node(kind: str, name: str) -> None:
    text = RELU_TEXT.format(t=kind, lines=PLAIN)
    compiled = run_passes(text, *RELU)
    assert ops(compiled) == [name]
    assert_same_numbers(model(text), compiled)
    odd = np.array([[np.nan, np.inf, -np.inf, -0.0]] * 3, "f" if kind == "float" else "d")
    for y in (np.zeros((3, 4), odd.dtype), np.ones((3, 4), odd.dtype), odd):
        a, b = (evaluate(ir.from_proto(each), {"y": y, "g": odd})["d"] for each in (model(text), compiled))
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "lines",
    [
        "off = LessOrEqual(y, z) t = Where(off, z, g) n = Cast <to = 1> (off) d = Add(t, n)",
        "off = Less(y, z) d = Where(off, z, g)",
        "off = LessOrEqual(y, z) d = Where(off, g, z)",
        "on = Greater(y, z) n = Cast <to = 1> (on) d = Mul(g, n)",  # 0 · inf is NaN
        "o = Constant <value = float {1}> () off = LessOrEqual(y, o) d = Where(off, z, g)",
    ],
)
def test_other_masks_stay(lines: str) -> None:
    assert_stays(
        RELU_TEXT.replace("{{", "{").replace("}}", "}").replace("{lines}", lines).replace("{t}", "float"), RELU[0]
    )


def test_both_types_in_one_model_and_in_a_loop() -> None:
    text = """agraph (float[3] y, float[3] g, double[3] v, double[3] h) => (float[3] d, double[3] e) {
        z = Constant <value = float {0}> () w = Constant <value = double {0}> ()
        n = Constant <value = int64 {2}> () c = Constant <value = bool {1}> ()
        off = LessOrEqual(v, w) e = Where(off, w, h)
        d = Loop (n, c, g) <body = b (int64 i, bool go, float[3] p) => (bool again, float[3] q) {
            again = Identity(go) m = LessOrEqual(y, z) q = Where(m, z, p) }> }"""
    compiled = run_passes(text, *RELU)
    assert sorted(f.name for f in compiled.functions) == ["ReluGrad", "ReluGradDouble"]
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize("shape", ["[5,3,4]", "[1,1,1]"])
@pytest.mark.parametrize("place", ["LessOrEqual(y, z)", "Where(off, z, g)"])
def test_a_zero_that_widens_the_gradient_stays(shape: str, place: str) -> None:
    text = RELU_TEXT.format(t="float", lines=PLAIN.replace(place, place.replace("z", "wide")))
    zeros = ", ".join(["0"] * (60 if "5" in shape else 1))
    text = text.replace("float[3,4] d", "float d").replace(
        "(float d)", f"(float{shape if '5' in shape else '[1,3,4]'} d)"
    )
    assert_stays(text.replace("{ z =", f"{{ wide = Constant <value = float{shape} {{{zeros}}}> () z ="), *RELU)
