"""--target ort: rotary positions, alone and before attention, of any length."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from pfvm.runtime.api import optimize
from support import assert_same_numbers, model, ops, run_passes

ROWS, SIZE = 7, 4


def table(function: np.ufunc) -> str:
    angles = np.outer(np.arange(ROWS), [1.0, 0.1])
    return ", ".join(f"{x:.6f}" for x in np.concatenate([function(angles)] * 2, 1).reshape(-1))


def turned(x: str, y: str, cos: str = "cos", sin: str = "sin") -> str:
    return f"""{y}a = Mul({x}, {cos}) {y}h = Slice({x}, two, end, last) {y}l = Slice({x}, zero, two, last)
      {y}n = Neg({y}h) {y}t = Concat<axis=-1>({y}n, {y}l) {y}b = Mul({y}t, {sin}) {y} = Add({y}a, {y}b)"""


CONSTANTS = f"""<float[{ROWS},{SIZE}] c = {{{table(np.cos)}}}, float[{ROWS},{SIZE}] s = {{{table(np.sin)}}},
 int64 at = {{1}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] end = {{{2**63 - 1}}},
 int64[1] last = {{3}}, float[8,8] w = {{{", ".join(str(i % 5 - 2) for i in range(64))}}},
 int64[4] apart = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}, float half = {{0.5}},
 float[{ROWS},{ROWS}] mask = {{{", ".join(str(-1e4 * (j > i)) for i in range(ROWS) for j in range(ROWS))}}}>"""
LENGTH = "shape = Shape(x) length = Gather(shape, at) n = Unsqueeze(length, zero)"
CUT = "cos = Slice(c, zero, n, zero, one) sin = Slice(s, zero, n, zero, one)"
HEADS = "r{0} = Reshape(m{0}, apart) h{0} = Transpose<perm=[0,2,1,3]>(r{0})"
LAYER = f"""<ir_version: 8, opset_import: ["" : 17]> agraph (float[B,L,8] x) => (float[B,L,8] y) {CONSTANTS} {{
  {LENGTH} {CUT} m1 = Slice(mask, zero, n, zero, one) m2 = Slice(m1, zero, n, one, one)
  mq = MatMul(x, w) {HEADS.format("q")} mk = MatMul(x, w) {HEADS.format("k")} mv = MatMul(x, w) {HEADS.format("v")}
  {turned("hq", "q")} {turned("hk", "k")} ks = Transpose<perm=[0,1,3,2]>(k)
  sc = MatMul(q, ks) sh = Mul(sc, half) sm = Add(sh, m2) p = Softmax<axis=-1>(sm) o = MatMul(p, hv)
  oh = Transpose<perm=[0,2,1,3]>(o) y = Reshape(oh, joined) }}"""


def feeds(length: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(length).standard_normal((2, length, 8)).astype(np.float32)}]


def test_a_layer_of_any_length() -> None:
    compiled = optimize(model(LAYER), target="ort")
    found = ops(compiled)
    assert found.count("RotaryEmbedding") >= 1 and found.count("MultiHeadAttention") == 1
    assert not {"Softmax", "Neg", "Transpose", "Concat"} & set(found)
    for length in (1, 2, ROWS):
        assert_same_numbers(model(LAYER), compiled, feeds(length))
    again = optimize(compiled, target="ort")
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)


ALONE = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[B,2,{length},4] x) => (float[B,2,{length},4] y) {constants} {{ {lines} }}"""


def test_heads_that_nothing_sets_apart() -> None:
    text = ALONE.format(length=ROWS, constants=CONSTANTS, lines=turned("x", "y", "c", "s"))
    compiled = run_passes(text, "ort-rotary", "eliminate-dead-code")
    assert ops(compiled) == ["RotaryEmbedding"]
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize(
    "lines",
    [
        turned("x", "y", "c", "s").replace("zero, two", "zero, one"),
        turned("x", "y", "c", "s").replace("Neg(", "Abs("),
        turned("x", "y", "c", "s").replace("(yn, yl)", "(yl, yn)"),
        turned("x", "y", "c", "mixed") + " ",
    ],
)
def test_other_turns_stay(lines: str) -> None:
    mixed = f"float[{ROWS},4] mixed = {{{', '.join(str(i) for i in range(4 * ROWS))}}}"
    constants = CONSTANTS.replace("<float", f"<{mixed}, float", 1)
    compiled = run_passes(ALONE.format(length=ROWS, constants=constants, lines=lines), "ort-rotary")
    assert "RotaryEmbedding" not in ops(compiled)


def test_a_length_that_is_another_stays() -> None:
    """One position of cos widens to all of x; the kernel would take as many as x has."""
    text = ALONE.format(length="M", constants=CONSTANTS, lines=f"{CUT} {turned('x', 'y')}").replace(
        "] x", "] x, int64[1] n"
    )
    compiled = optimize(model(text), target="ort")
    assert "RotaryEmbedding" not in ops(compiled)
    one = {"x": np.ones((1, 2, 3, 4), np.float32), "n": np.array([1])}
    assert_same_numbers(model(text), compiled, [one])
    assert onnx.checker.check_model(compiled) is None
