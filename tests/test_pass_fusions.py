"""fuse-transpose-gemm and fuse-cast-reduce-sum."""

from __future__ import annotations

import pytest
from support import assert_becomes, assert_same_numbers, assert_stays, model, ops, run_passes

GEMM, SUM, DEAD = "fuse-transpose-gemm", "fuse-cast-reduce-sum", "eliminate-dead-code"


FRAME = "agraph (float[2,3] x, float[4,3] w, float[3,4] v, float[4] b) => (float[2,4] y) {{ {} }}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("t = Transpose <perm = [1, 0]> (w) y = Gemm(x, t, b)", "y = Gemm <transB = 1> (x, w, b)"),
        ("t = Transpose(v) y = Gemm <alpha = 0.5, transB = 1> (x, t, b)", "y = Gemm <alpha = 0.5> (x, v, b)"),
        ("t = Transpose(x) y = Gemm <transA = 1> (t, v, b)", "y = Gemm(x, v, b)"),
        ("t = Transpose(x) y = Gemm <transA = -1> (t, v, b)", "y = Gemm(x, v, b)"),
        ("t = Transpose(w) y = MatMul(x, t)", "y = Gemm <transB = 1> (x, w)"),
        ("t = Transpose(x) u = Transpose(t) y = Gemm(u, v)", "y = Gemm(x, v)"),
    ],
)
def test_transpose_goes_into_gemm(before: str, after: str) -> None:
    assert_becomes(FRAME.format(before), FRAME.format(after), GEMM, DEAD)


def test_a_transpose_that_is_also_an_output_stays_and_gemm_still_reads_the_matrix() -> None:
    assert_becomes(
        "agraph (float[2,3] x, float[4,3] w) => (float[2,4] y, float[3,4] t) { t = Transpose(w) y = Gemm(x, t) }",
        "agraph (float[2,3] x, float[4,3] w) => (float[2,4] y, float[3,4] t) "
        "{ t = Transpose(w) y = Gemm <transB = 1> (x, w) }",
        GEMM,
    )


def test_x_times_its_own_transpose() -> None:
    assert_becomes(
        "agraph (float[2,3] x) => (float[2,2] y) { t = Transpose(x) y = MatMul(x, t) }",
        "agraph (float[2,3] x) => (float[2,2] y) { y = Gemm <transB = 1> (x, x) }",
        GEMM,
        DEAD,
    )


@pytest.mark.parametrize(
    "graph",
    [
        "agraph (float[2,3] x, float[3] v) => (float[2] y) { t = Transpose(v) y = MatMul(x, t) }",  # a vector
        "agraph (float[5,2,3] x, float[4,3] w) => (float[5,2,4] y) { t = Transpose(w) y = MatMul(x, t) }",  # a batch
        "agraph (int32[2,3] x, int32[4,3] w) => (int32[2,4] y) { t = Transpose(w) y = MatMul(x, t) }",
        "agraph (float[2,3] x, float[4,3] w) => (float[2,4] y, float[3,4] t) { t = Transpose(w) y = MatMul(x, t) }",
    ],
)
def test_a_matmul_that_is_no_gemm_stays(graph: str) -> None:
    assert_stays(graph, GEMM)


def test_before_opset_11_gemm_needs_c() -> None:
    text = """<ir_version: 8, opset_import: ["" : 10]>
        agraph (float[2,3] x, float[4,3] w) => (float[2,4] y) { t = Transpose(w) y = MatMul(x, t) }"""
    assert ops(run_passes(text, GEMM)) == ["Transpose", "MatMul"]


def test_cast_and_reduce_sum_become_one_node() -> None:
    text = "agraph (bool[N,4] m) => (int64 n) { c = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (c) }"
    compiled = run_passes(text, SUM)
    (node,) = compiled.graph.node
    assert (node.domain, node.op_type) == ("pfvm", "ChainerCastReduceSum")
    (function,) = compiled.functions
    assert [inner.op_type for inner in function.node] == ["Cast", "ReduceSum"]
    assert_same_numbers(model(text), compiled)
    again = run_passes(compiled)
    assert again.SerializeToString(deterministic=True) == run_passes(again).SerializeToString(deterministic=True)
    assert ops(again) == ["ChainerCastReduceSum"]


@pytest.mark.parametrize("opset", [8, 12, 13, 17, 21])
def test_every_form_of_axes(opset: int) -> None:
    axes = "k = Constant <value = int64[1] {1}> ()" if opset >= 13 else ""
    total = "n = ReduceSum <keepdims = 0> (c, k)" if opset >= 13 else "n = ReduceSum <axes = [1], keepdims = 0> (c)"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        agraph (int32[2,4] m) => (float[2] n) {{ {axes} c = Cast <to = 1> (m) {total} }}"""
    compiled = run_passes(text, SUM)
    assert ops(compiled) == ["ChainerCastReduceSumAxes"]
    assert_same_numbers(model(text), compiled)


def test_both_forms_in_one_model() -> None:
    text = """agraph (bool[2,4] m) => (int64[2] n, int64 t) {
        k = Constant <value = int64[1] {1}> () c = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (c, k)
        d = Cast <to = 7> (m) t = ReduceSum <keepdims = 0> (d) }"""
    compiled = run_passes(text, SUM)
    assert len(compiled.functions) == 2
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize(
    "lines",
    [
        "c = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (c) z = Identity(c)",
        "z = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (z)",
    ],
)
def test_a_cast_value_that_is_needed_elsewhere_stays(lines: str) -> None:
    assert_stays(f"agraph (bool[2,4] m) => (int64 n, int64[2,4] z) {{ {lines} }}", SUM)


def test_inline_keeps_standard_operators() -> None:
    from pfvm.compiler.driver import compile_model
    from pfvm.compiler.exporter import to_proto
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.options import parse

    text = "agraph (bool[N,4] m) => (int64 n) { c = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (c) }"
    options = parse(fused_ops="inline")
    assert ops(to_proto(compile_model(read_model(model(text)), options).model)) == ["Cast", "ReduceSum"]
    fused = run_passes(text)
    assert ops(to_proto(compile_model(read_model(fused), options).model)) == ["Cast", "ReduceSum"]


def test_in_a_loop_body() -> None:
    text = """agraph (bool[3] m, int64 start) => (int64 y) {
        trips = Constant <value = int64 {2}> () c = Constant <value = bool {1}> ()
        y = Loop (trips, c, start) <body = b (int64 i, bool go, int64 s) => (bool again, int64 t) {
            again = Identity(go) w = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (w) t = Add(s, n) }> }"""
    compiled = run_passes(text, SUM)
    assert [n.op_type for n in compiled.graph.node[0].attribute[0].g.node] == [
        "Identity",
        "ChainerCastReduceSum",
        "Add",
    ]
    assert_same_numbers(model(text), compiled)
