"""GPUs: every program is lowered for CUDA (and for a TPU) here, without one; where there is one, it also runs."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import TestCase, load_model_tests

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from pfvm.errors import PfvmError
from pfvm.runtime.api import load
from support import has_gpu

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # making ONNX's test data divides by zero
]
HEADER = '<ir_version: 9, opset_import: ["" : 20]>\n'
RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) / 4


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 255, shape).astype(np.uint8)


CNN = """g (float[N, 3, 16, 16] x, float[8, 3, 3, 3] w, float[8] b, float[8, 1, 3, 3] depthwise, float[10, 8] fc)
  => (float[N, 10] y) <float[8] one = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] zero = {0, 0, 0, 0, 0, 0, 0, 0}> {
  c = Conv<pads = [1, 1, 1, 1]>(x, w, b) n = BatchNormalization(c, one, zero, zero, one) r = Relu(n)
  d = Conv<group = 8, strides = [2, 2]>(r, depthwise) p = MaxPool<kernel_shape = [2, 2]>(d)
  a = GlobalAveragePool(p) f = Flatten(a) y = Gemm<transB = 1>(f, fc)
}"""
TRANSFORMER = """g (float[B, S, 16] x, float[16, 48] qkv, float[16, 64] up, float[64, 16] down) => (float[B, S, 16] y)
  <int64[5] heads = {0, 0, 3, 4, 4}, int64[3] merge = {0, 0, 16}, float half = {0.5}, float[16] g1 = {
  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
  n = LayerNormalization(x, g1) m = MatMul(n, qkv) r = Reshape(m, heads) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)
  q3, k3, v3 = Split<num_outputs = 3>(t) zero = Constant<value = int64[1] {0}>()
  q = Squeeze(q3, zero) k = Squeeze(k3, zero) v = Squeeze(v3, zero) kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s = MatMul(q, kt) scaled = Mul(s, half) p = Softmax(scaled) o = MatMul(p, v) ot = Transpose<perm = [0, 2, 1, 3]>(o)
  om = Reshape(ot, merge) h = Add(x, om) u = MatMul(h, up) e = Gelu(u) w = MatMul(e, down) y = Add(h, w)
}"""
CONTROL = """g (float[4] x, int64 m, bool f) => (float[4] y, float[3, 4] t) <bool go = {1}, int64 three = {3}> {
  a = Loop(m, go, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
    w = Tanh(v) s = ReduceSum<keepdims = 0>(w) k = Constant<value = float {0.1}>() d = Greater(s, k) }>
  y = If(f) <then_branch = p () => (float[4] g) { g = Sin(a) }, else_branch = q () => (float[4] h) { h = Neg(x) }>
  l, t = Loop(three, go, x) <body = e (int64 i, bool c, float[4] v) => (bool d, float[4] w, float[4] z) {
    d = Identity(c) w = Mul(v, a) z = Exp(w) }>
}"""
QUANTIZED = """g (float[2, 4, 8, 8] x, uint8[5, 4, 3, 3] w, uint8[180, 6] v) => (float[2, 6] y)
  <float scale = {0.02}, uint8 zero = {128}> {
  q = QuantizeLinear(x, scale, zero)
  c = QLinearConv(q, scale, zero, w, scale, zero, scale, zero) s = Flatten(c) m = MatMulInteger(s, v, zero, zero)
  f = Cast<to = 1>(m) y = Mul(f, scale)
}"""
RNN = """g (float[5, 2, 3] x, float[2, 16, 3] w, float[2, 16, 4] r, float[1, 12, 3] gw, float[1, 12, 4] gr)
  => (float[5, 2, 2, 4] y, float[5, 1, 2, 4] z) {
  y = LSTM<hidden_size = 4, direction = "bidirectional">(x, w, r) z = GRU<hidden_size = 4>(x, gw, gr)
}"""
NETS = {
    "CNN": (CNN, {"x": f32(2, 3, 16, 16), "w": f32(8, 3, 3, 3), "b": f32(8), "depthwise": f32(8, 1, 3, 3),
                  "fc": f32(10, 8)}),
    "transformer": (TRANSFORMER, {"x": f32(2, 7, 16), "qkv": f32(16, 48), "up": f32(16, 64), "down": f32(64, 16)}),
    "If and Loop": (CONTROL, {"x": f32(4) + 1, "m": np.array(3), "f": np.array(True)}),
    "quantized": (QUANTIZED, {"x": f32(2, 4, 8, 8), "w": u8(5, 4, 3, 3), "v": u8(180, 6)}),
    "RNN": (RNN, {"x": f32(5, 2, 3), "w": f32(2, 16, 3), "r": f32(2, 16, 4), "gw": f32(1, 12, 3), "gr": f32(1, 12, 4)}),
    "scan": ("""g (float[6, 3] x, float[3] s) => (float[3] e, float[6, 3] y) {
      e, y = Scan<num_scan_inputs = 1, body = b (float[3] p, float[3] q) => (float[3] r, float[3] t) {
        r = Add(p, q) t = Mul(r, q) }>(s, x) }""", {"x": f32(6, 3), "s": f32(3)}),
    "random, double and linear algebra": ("""g (float[3] x, float[2, 2] m, double[2] v)
      => (float[3] y, float d, double[2] w) {
      r = RandomNormalLike(x) z = Mul(r, x) y = Sub(z, z) d = Det(m) w = Exp(v) }""",
      {"x": f32(3), "m": f32(2, 2), "v": np.ones(2)}),
}  # fmt: skip


def net(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + NETS[name][0])


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", NETS)
def test_nets_are_lowered(name: str, platform: str) -> None:
    (program,) = load(net(name), "xla:cpu").export(NETS[name][1], platform)
    assert program.platforms == (platform,)
    text = str(program.mlir_module())
    assert "stablehlo." in text and "callback" not in text
    assert "DEFAULT" not in text, "TF32 or bfloat16 in the place of float32"
    types = [str(aval.dtype) for aval in program.out_avals]
    assert types == [str(v.dtype) for v in load(net(name), "pfvm:cpu")(NETS[name][1]).values()]


def test_integers_are_convolved_in_a_type_that_cudnn_has() -> None:
    exe = load(net("quantized"), "xla:cpu")
    for platform, kind in (("cuda", "f64"), ("cpu", "i32")):
        (program,) = exe.export(NETS["quantized"][1], platform)
        (line,) = [line for line in program.mlir_module().splitlines() if "stablehlo.convolution" in line]
        assert line.partition(" -> ")[2].partition(">")[0].endswith(f"x{kind}")


def test_programs_around_a_host_segment_are_lowered_one_by_one() -> None:
    text = """g (float[N] x) => (float[A] y) <float zero = {0}> {
      e = Tanh(x) c = Greater(e, zero) d = Compress(e, c) y = Exp(d) }"""
    x = np.array([1, -1, 2], np.float32)
    exe = load(onnx.parser.parse_model(HEADER + text), "xla:cpu")
    first, second = exe.export({"x": x}, "cuda")
    assert [str(a) for a in (*first.in_avals, *second.out_avals)] == ["float32[3]", "float32[2]"]
    assert exe.compilations == 1  # to know what comes behind the cut


@functools.cache
def official() -> list[TestCase]:
    """One of ONNX's own tests for each operator."""
    cases = load_model_tests(kind="node")
    return list({c.model.graph.node[0].op_type: c for c in cases if not c.name.endswith("_expanded")}.values())


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_every_operator_of_the_official_suite_is_lowered(platform: str) -> None:
    refused, lowered = {}, 0
    for case in official():
        names = [v.name for v in case.model.graph.input]
        arrays = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in case.data_sets[0][0]]
        try:
            programs = load(case.model, "xla:cpu").export(dict(zip(names, arrays)), platform)
        except PfvmError as error:
            refused[case.name] = str(error)
        else:
            lowered += bool(programs)  # none where all of it runs on the host
    assert refused == {}
    assert lowered > 170


@pytest.mark.parametrize("device", ["pfvm:cuda", "xla:cuda"])
@pytest.mark.parametrize("name", NETS)
def test_nets_run_on_a_gpu(name: str, device: str) -> None:
    if not has_gpu(device):
        pytest.skip(f"{device}: no NVIDIA GPU here")
    expected = load(net(name), "pfvm:cpu")(NETS[name][1])
    actual = load(net(name), device)(NETS[name][1])
    for output, value in expected.items():
        np.testing.assert_allclose(actual[output], value, rtol=1e-3, atol=1e-4)
