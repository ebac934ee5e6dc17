"""fuse-gemm-sum, and fuse-transpose-gemm where a product itself is transposed: the matrices of a backward pass."""

from __future__ import annotations

import onnx
import pytest
from support import assert_same_numbers, assert_stays, model, ops, run_passes

SUM, TRANSPOSE = ("fuse-gemm-sum", "eliminate-dead-code"), ("fuse-transpose-gemm", "eliminate-dead-code")
FRAME = (
    "agraph (float[2,3] x, float[2,5] g, float[2,3] u, float[2,5] h, float[5,3] w, float s) => (float[5,3] y) {{ {} }}"
)
PRODUCT = "p = Gemm <transA = 1> (g, x)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{PRODUCT} m = Mul(p, s) y = Add(w, m)", "y_1 = Mul(g, s) y = Gemm <transA = 1> (y_1, x, w)"),
        (f"{PRODUCT} m = Mul(s, p) y = Add(m, w)", "y_1 = Mul(g, s) y = Gemm <transA = 1> (y_1, x, w)"),
        (f"{PRODUCT} m = Mul(p, s) y = Sub(w, m)", "y_1 = Mul(g, s) y = Gemm <alpha = -1.0, transA = 1> (y_1, x, w)"),
        (
            f"{PRODUCT} q = Gemm <transA = 1, alpha = 0.5> (h, u) y = Add(p, q)",
            f"{PRODUCT} y = Gemm <alpha = 0.5, transA = 1> (h, u, p)",
        ),
    ],
)
def test_a_sum_goes_into_gemm(before: str, after: str) -> None:
    compiled = run_passes(FRAME.format(before), *SUM)
    expected = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {FRAME.format(after)}')
    assert [n.op_type for n in compiled.graph.node] == [n.op_type for n in expected.graph.node]
    assert {a.name: onnx.helper.get_attribute_value(a) for a in compiled.graph.node[-1].attribute} == {
        a.name: onnx.helper.get_attribute_value(a) for a in expected.graph.node[-1].attribute
    }
    assert_same_numbers(model(FRAME.format(before)), compiled)


@pytest.mark.parametrize(
    "lines",
    [
        f"{PRODUCT} m = Mul(p, s) v = Neg(w) y = Add(v, m)",  # not an input: part of momentum, decay …
        f"{PRODUCT} m = Mul(p, s) t = Add(w, m) y = Add(t, p)",  # the product is needed elsewhere
        "p = Gemm <transA = 1> (g, x, w) m = Mul(p, s) y = Add(w, m)",
        f"{PRODUCT} m = Mul(p, w) y = Add(w, m)",
        f"{PRODUCT} y = Add(w, p)",
    ],
)
def test_what_stays(lines: str) -> None:
    assert_stays(FRAME.format(lines), SUM[0])


def test_a_product_that_is_smaller_than_its_operands_is_scaled_itself() -> None:
    assert_stays(
        "agraph (float[9,3] x, float[9,5] g, float[5,3] w, float s) => (float[5,3] y) "
        f"{{ {PRODUCT} m = Mul(p, s) y = Add(w, m) }}",
        SUM[0],
    )


def test_matmul_of_matrices_only() -> None:
    text = """agraph ({0}[2,3] x, {0}[3,9] v, {0}[2,9] w, {0} s) => ({0}[2,9] y) {{
        p = MatMul(x, v) m = Mul(p, s) y = Add(w, m) }}"""
    for kind, expected in (
        ("float", ["Mul", "Gemm"]),
        ("double", ["Mul", "Gemm"]),
        ("float16", ["MatMul", "Mul", "Add"]),
    ):
        compiled = run_passes(text.format(kind), *SUM)
        assert ops(compiled) == expected
        if kind != "float16":
            assert_same_numbers(model(text.format(kind)), compiled)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("t = Transpose(x) p = MatMul(t, g) y = Transpose(p)", "y = Gemm <transA = 1> (g, x)"),
        ("p = Gemm <transA = 1, alpha = 0.5> (x, g) y = Transpose(p)", "y = Gemm <transA = 1, alpha = 0.5> (g, x)"),
        (
            "t = Transpose(x) p = MatMul(t, g) q = MatMul(t, h) r = Add(p, q) y = Transpose(r)",
            "p = Gemm <transA = 1> (x, g) q = Gemm <transA = 1> (x, h) r = Add(p, q) y = Transpose(r)",
        ),
    ],
)
def test_a_transposed_product_is_one_gemm(before: str, after: str) -> None:
    compiled = run_passes(FRAME.format(before), *TRANSPOSE)
    expected = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {FRAME.format(after)}')
    assert [(n.op_type, list(n.input)[:1]) for n in compiled.graph.node][:2] == [
        (n.op_type, list(n.input)[:1]) for n in expected.graph.node
    ][:2]
    assert_same_numbers(model(FRAME.format(before)), compiled)


def test_a_product_needed_both_ways_stays() -> None:
    assert_stays(
        "agraph (float[2,3] x, float[2,5] g) => (float[3,5] p, float[5,3] y) "
        "{ p = Gemm <transA = 1> (x, g) y = Transpose <perm = [1, 0]> (p) }",
        TRANSPOSE[0],
    )


STEP = """agraph ({t}[6,3] x, {t}[6,4] g, {t}[3,4] w) => ({t}[3,4] y) {{
    k = Constant <value = {t} {{{scale}}}> () p = Gemm <transA = 1> (x, g) {lines} }}"""


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("s = Mul(p, k) y = Sub(w, s)", "transA = 1, alpha = -0.5"),
        ("s = Mul(k, p) y = Add(s, w)", "transA = 1, alpha = 0.5"),
        ("y = Sub(w, p)", "transA = 1, alpha = -1.0"),
    ],
)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_step_by_a_constant_rate_is_one_gemm(lines: str, left: str, kind: str) -> None:
    text = STEP.format(t=kind, scale=0.5, lines=lines)
    after = f"agraph ({kind}[6,3] x, {kind}[6,4] g, {kind}[3,4] w) => ({kind}[3,4] y) {{ y = Gemm <{left}> (x, g, w) }}"
    compiled = run_passes(text, *SUM)
    expected = run_passes(after)
    assert [(n.op_type, list(n.input)) for n in compiled.graph.node] == [("Gemm", ["x", "g", "w"])]
    assert_same_numbers(expected, compiled)
    assert_same_numbers(model(text), compiled)


def test_a_rate_that_a_float_does_not_hold_stays_double() -> None:
    text = STEP.format(t="double", scale=0.1, lines="s = Mul(p, k) y = Sub(w, s)")
    assert ops(run_passes(text, *SUM)) == ["Gemm", "Mul", "Sub"]


def test_a_product_times_zero_keeps_what_is_no_number() -> None:
    text = "agraph (float[2,3] a, float[3,4] b) => (float[2,4] y) <float k = {0}> { p = Gemm(a, b) y = Mul(p, k) }"
    compiled = run_passes(text, "fuse-gemm-sum")
    assert ops(compiled) == ["Gemm", "Mul"]


def test_where_gemm_needs_something_to_add_a_scaled_matmul_stays() -> None:
    text = """<ir_version: 8, opset_import: ["" : 9]> agraph (float[2,3] a, float[3,4] b) => (float[2,4] y)
        <float k = {0.5}> { p = MatMul(a, b) y = Mul(p, k) }"""
    assert ops(run_passes(text, "fuse-gemm-sum")) == ["MatMul", "Mul"]
