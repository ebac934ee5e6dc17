"""--target ort: operators that only ONNX Runtime has, with the numbers of the original."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from pfvm.runtime.api import optimize
from support import assert_same_numbers, inputs, model, ops, run_passes

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]> agraph '
BLOCK = (
    HEAD
    + """(float[B,S,8] x, float[B,1,S,S] mask) => (float[B,S,8] y)
<float[8,8] q = {{{w}}}, float[8,8] k = {{{w}}}, float[8,8] v = {{{w}}}, float[8] scale = {{1, 2, 3, 4, 5, 6, 7, 8}},
 float[8] bias = {{8, 7, 6, 5, 4, 3, 2, 1}}, int64[4] apart = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}},
 float root = {{1.41421356}}, float one = {{1}}, float half = {{0.5}}, float two = {{2}}, float eps = {{0.00001}}> {{
  qm = MatMul(x, q) km = MatMul(x, k) vm = MatMul(x, v) qa = Reshape(qm, apart) ka = Reshape(km, apart)
  va = Reshape(vm, apart) qh = Transpose<perm=[0,2,1,3]>(qa) kh = Transpose<perm=[0,2,3,1]>(ka)
  vh = Transpose<perm=[0,2,1,3]>(va) s = MatMul(qh, kh) t = {scaled} u = {masked} p = Softmax<axis=-1>(u)
  o = MatMul(p, vh) oh = Transpose<perm=[0,2,1,3]>(o) att = Reshape(oh, joined) z = Add(x, att)
  m = ReduceMean<axes=[-1]>(z) d = Sub(z, m) sq = Pow(d, two) va2 = ReduceMean<axes=[-1]>(sq) e = Add(va2, eps)
  rt = Sqrt(e) n = Div(d, rt) ns = Mul(n, scale) nb = Add(ns, bias)
  g = Div(nb, root) ge = Erf(g) gt = Add(ge, one) gm = Mul(nb, gt) y = Mul(gm, half) }}"""
)
WEIGHTS = ", ".join(f"{np.sin(i):.3f}" for i in range(64))


def block(opset: int = 14, scaled: str = "Mul(s, half)", masked: str = "Add(t, mask)") -> str:
    return BLOCK.format(opset=opset, w=WEIGHTS, scaled=scaled, masked=masked)


@pytest.mark.parametrize(
    ("scaled", "masked"),
    [("Mul(s, half)", "Add(t, mask)"), ("Div(s, two)", "Add(mask, t)"), ("Mul(half, s)", "Abs(t)")],
)
def test_a_block_of_a_transformer(scaled: str, masked: str) -> None:
    text = block(scaled=scaled, masked=masked)
    compiled = optimize(model(text), target="ort")
    found = ops(compiled)
    if masked != "Abs(t)":
        assert found.count("MultiHeadAttention") == 1 and "Softmax" not in found
    assert found[-3:] == ["Sum", "LayerNormalization", "Gelu"]
    assert_same_numbers(model(text), compiled)
    again = optimize(compiled, target="ort")
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)


def test_without_the_target_the_file_stays_standard() -> None:
    compiled = optimize(model(block()))
    assert {each.domain for each in compiled.opset_import} == {""}
    onnx.checker.check_model(compiled, full_check=True)


@pytest.mark.parametrize("shape", ["float[S,S] mask", "float[B,1,S,S] mask", "float[B,1,1,S] mask", "float[S] mask"])
def test_masks_of_fewer_dims(shape: str) -> None:
    text = block().replace("float[B,1,S,S] mask", shape)
    compiled = optimize(model(text), target="ort")
    assert "MultiHeadAttention" in ops(compiled)
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize("shape", ["float mask", "float[B,2,S,1] mask"])
def test_masks_that_widen_in_a_way_that_the_kernel_does_not(shape: str) -> None:
    text = block().replace("float[B,1,S,S] mask", shape)
    assert "MultiHeadAttention" not in ops(optimize(model(text), target="ort"))


def test_scales_of_the_operands_count() -> None:
    text = block().replace("s = MatMul(qh, kh)", "q2 = Mul(qh, half) k2 = Div(kh, two) s = MatMul(q2, k2)")
    compiled = optimize(model(text), target="ort")
    (node,) = [each for each in compiled.graph.node if each.op_type == "MultiHeadAttention"]
    assert {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} == {"num_heads": 2, "scale": 0.125}
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize(("masked", "expected"), [("Add(t, mask)", "MultiHeadAttention"), ("Identity(t)", "Attention")])
def test_from_opset_23_on_attention_is_standard_where_every_row_keeps_a_key(masked: str, expected: str) -> None:
    text = (
        block(23, masked=masked)
        .replace("ReduceMean<axes=[-1]>(z)", "ReduceMean(z, last)")
        .replace("ReduceMean<axes=[-1]>(sq)", "ReduceMean(sq, last)")
    )
    text = text.replace("ir_version: 8", "ir_version: 10").replace("float root", "int64[1] last = {-1}, float root")
    compiled = optimize(model(text), target="ort")
    assert expected in ops(compiled)
    feeds = inputs(model(text), 0)
    feeds["mask"][0, 0, 1] = np.finfo(np.float32).min  # the mean of all values, in the steps as in the kernel
    assert_same_numbers(model(text), compiled, [inputs(model(text), 0), feeds])


ROOT = (
    HEAD.format(opset=17)
    + """(float[N,3,4] x) => (float[N,3,4] y)
<float[4] scale = {1, 2, 3, 4}, float eps = {0.001}> {
  p = Mul(x, x) v = ReduceMean<axes=[-1]>(p) e = Add(v, eps) s = Sqrt(e) r = Reciprocal(s) n = Mul(x, r)
  y = Mul(scale, n) }"""
)


def test_root_mean_square_before_opset_23() -> None:
    compiled = run_passes(ROOT, "ort-norms", "eliminate-dead-code")
    assert ops(compiled) == ["SimplifiedLayerNormalization"]
    assert_same_numbers(model(ROOT), compiled)


@pytest.mark.parametrize(("rows", "padded"), [("N", True), ("16", True), ("15", False)])
@pytest.mark.parametrize("op", ["MatMul(x, w)", "Gemm(x, w, b)", "Gemm<transB=1>(x, w, b)"])
def test_products_over_pages_are_padded(op: str, rows: str, padded: bool) -> None:
    source = model(HEAD.format(opset=17) + f"(float[{rows},1024] x, float[3] b) => (float[{rows},3] y) {{ y = {op} }}")
    w = np.random.default_rng(0).standard_normal((3, 1024) if "transB" in op else (1024, 3)).astype(np.float32)
    source.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    compiled = run_passes(source, "ort-pad-products")
    assert ("Pad" in ops(compiled)) == padded
    feeds = {"x": inputs(source, 0)["x"], "b": np.ones(3, np.float32)}
    feeds["x"][0, 0] = np.inf  # what is padded does not meet it
    if "b)" not in op:
        source.graph.input.pop()
        compiled.graph.input.pop()
        del feeds["b"]
    assert_same_numbers(source, compiled, [feeds])


@pytest.mark.parametrize(
    ("shape", "bias", "fused"),
    [
        ("B,L,3", "float[2] b", True),
        ("2,L,3", "float[2] b", True),
        ("A,B,L,3", "float[2] b", True),
        ("L,3", "float[2] b", False),  # ONNX Runtime joins those itself
        ("B,L,3", "float[1] b", False),
        ("B,L,3", "float[L,2] b", False),
        ("B,L,3", "float[N] b", False),
    ],
)
def test_linear_layers_of_more_than_two_dims(shape: str, bias: str, fused: bool) -> None:
    text = HEAD.format(opset=17) + (
        f"(float[{shape}] x, {bias}) => (y) <float[3,2] w = {{1, 2, 3, 4, 5, 6}}> {{ m = MatMul(x, w) y = Add(b, m) }}"
    )
    compiled = run_passes(text, "ort-linear")
    assert ("Gemm" in ops(compiled)) == fused
    if "[N]" not in bias:
        assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize("dims", [(2, 0), (0, 2)])
def test_linear_layers_of_nothing(dims: tuple[int, int]) -> None:
    text = "(float[B,L,3] x, float[2] b) => (y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { m = MatMul(x, w) y = Add(b, m) }"
    source = model(HEAD.format(opset=17) + text)
    compiled = optimize(source, target="ort")
    assert "Gemm" in ops(compiled)
    feeds = {"x": np.zeros((*dims, 3), np.float32), "b": np.ones(2, np.float32)}
    assert_same_numbers(source, compiled, [feeds])
    assert "Gemm" not in ops(run_passes(HEAD.format(opset=13) + text, "ort-linear"))  # no Reshape says that there


def test_a_product_that_is_needed_stays() -> None:
    text = HEAD.format(opset=17) + (
        "(float[B,L,3] x, float[2] b) => (y, z) <float[3,2] w = {1, 2, 3, 4, 5, 6}>"
        " { m = MatMul(x, w) y = Add(b, m) z = Neg(m) }"
    )
    assert "Gemm" not in ops(run_passes(text, "ort-linear"))


def test_gelu_by_tanh() -> None:
    text = (
        HEAD.format(opset=14)
        + """(float[N,3] x) => (float[N,3] y)
    <float c = {0.7978845608}, float k = {0.044715}, float three = {3}, float one = {1}, float half = {0.5}> {
      a = Pow(x, three) b = Mul(k, a) d = Add(x, b) e = Mul(c, d) f = Tanh(e) g = Add(one, f) h = Mul(half, x)
      y = Mul(h, g) }"""
    )
    compiled = optimize(model(text), target="ort")
    assert ops(compiled) == ["FastGelu"]
    assert_same_numbers(model(text), compiled)
