"""fuse-conv and fuse-matmul-bias: what follows a convolution or a product of matrices becomes part of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pass_settings import assert_rewritten
from support import assert_same_numbers, assert_stays, ops, run_passes

W = "w = Constant <value = float[4,2,1,1] {1, 2, -3, 0.5, 4, -1, 2, 0.25}> ()"
T = "w = Constant <value = float[2,2,1,1] {1, 2, -3, 0.5}> ()"
B = "b = Constant <value = float[4] {1, -1, 0.5, 3}> ()"
STATS = """s = Constant <value = float[4] {1, 2, 3, 4}> () t = Constant <value = float[4] {0, 1, -1, 2}> ()
    m = Constant <value = float[4] {0.5, 1, -1, 2}> () v = Constant <value = float[4] {1, 0.25, 4, 2}> ()"""
K = "k = Constant <value = float[4,1,1] {2, 3, -1, 0.5}> ()"
NUMBER = "k = Constant <value = float {3}> ()"
FRAME = "agraph (float[N,2,5,6] x) => (float[N,4,H,U] y) {{ {} }}"

FOLDED = {
    "normalization": (f"{W} {STATS} a = Conv(x, w) y = BatchNormalization(a, s, t, m, v)", ["Conv"]),
    "with a bias": (f"{W} {B} {STATS} a = Conv(x, w, b) y = BatchNormalization(a, s, t, m, v)", ["Conv"]),
    "transposed": (
        f"{T} {STATS} a = ConvTranspose <group = 2> (x, w) y = BatchNormalization(a, s, t, m, v)",
        ["ConvTranspose"],
    ),
    "scale": (f"{W} {B} {K} a = Conv(x, w, b) y = Mul(k, a)", ["Conv"]),
    "quotient": (f"{W} {NUMBER} a = Conv(x, w) y = Div(a, k)", ["Conv"]),
    "shift": (f"{W} {K} a = Conv(x, w) y = Add(a, k)", ["Conv"]),
    "difference": (f"{W} {B} {NUMBER} a = Conv(x, w, b) y = Sub(a, k)", ["Conv"]),
}


@pytest.mark.parametrize(("lines", "expected"), FOLDED.values(), ids=list(FOLDED))
def test_a_convolution_takes_in_its_neighbours(lines: str, expected: list[str]) -> None:
    assert_rewritten(FRAME.format(lines), expected, "fuse-conv")


@pytest.mark.parametrize(
    "lines",
    [
        f"{W} {K} a = Conv(x, w) y = Div(k, a)",
        f"{W} k = Constant <value = float[6] {{1, 2, 3, 4, 5, 6}}> () a = Conv(x, w) y = Mul(a, k)",
        f"{W} k = Constant <value = float {{0}}> () a = Conv(x, w) y = Div(a, k)",
    ],
)
def test_other_neighbours_stay(lines: str) -> None:
    compiled = run_passes(FRAME.format(lines), "fuse-conv")
    assert len(ops(compiled)) == 2


def test_training_statistics_are_not_folded() -> None:
    text = FRAME.format(f"{W} {STATS} a = Conv(x, w) y, p, q = BatchNormalization <training_mode = 1> (a, s, t, m, v)")
    assert ops(run_passes(text, "fuse-conv")) == ["Conv", "BatchNormalization"]


def test_an_overridable_weight_is_no_constant() -> None:
    x, w, k = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [1, 2, 4, 4]), ("w", [4, 2, 1, 1]), ("y", [1, 4, 4, 4]))
    )
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "two"], ["y"])]
    weights = [
        numpy_helper.from_array(np.ones((4, 2, 1, 1), np.float32), "w"),
        numpy_helper.from_array(np.float32(2), "two"),
    ]
    graph = helper.make_graph(nodes, "g", [x, w], [k], weights)
    source = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    assert isinstance(source, onnx.ModelProto)
    compiled = run_passes(source, "fuse-conv")
    assert ops(compiled) == ["Conv", "Mul"]
    assert_same_numbers(source, compiled)


GEMM = {
    "bias": ("float[N,3] x, float[3,4] w, float[4] c", "a = MatMul(x, w) y = Add(a, c)"),
    "on the left": ("float[N,3] x, float[3,4] w, float[1,4] c", "a = MatMul(x, w) y = Add(c, a)"),
    "number": ("float[N,3] x, float[3,4] w, float c", "a = MatMul(x, w) y = Add(a, c)"),
    "matrix": ("float[N,3] x, float[3,4] w, float[N,4] c", "a = MatMul(x, w) y = Add(a, c)"),
}


@pytest.mark.parametrize(("inputs", "lines"), GEMM.values(), ids=list(GEMM))
def test_a_product_of_matrices_takes_in_what_is_added(inputs: str, lines: str) -> None:
    assert_rewritten(f"agraph ({inputs}) => (float[N,4] y) {{ {lines} }}", ["Gemm"], "fuse-matmul-bias")


@pytest.mark.parametrize(
    "inputs",
    [
        "float[N,3] x, float[3,4] w, float[M,4] c",
        "float[2,N,3] x, float[3,4] w, float[4] c",
        "float16[N,3] x, float16[3,4] w, float16[4] c",
        "float[1,3] x, float[3,4] w, float[5,4] c",
    ],
)
def test_what_is_not_proved_stays(inputs: str) -> None:
    kind = inputs.split("[")[0]
    rank = "2,N,4" if "[2," in inputs else "M,4" if "M" in inputs else "5,4" if "5" in inputs else "N,4"
    text = f"agraph ({inputs}) => ({kind}[{rank}] y) {{ a = MatMul(x, w) y = Add(a, c) }}"
    assert_stays(text, "fuse-matmul-bias")


def test_a_scale_with_which_sums_overflow_stays() -> None:
    lines = f"{W} {NUMBER.replace('3', '1e20')} a = Conv(x, w) y = Mul(a, k)"
    assert_stays(FRAME.format(lines), "fuse-conv")
