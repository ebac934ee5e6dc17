"""--target ort: attention under the masks that exporters write, with the numbers of the original, hidden rows too."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pfvm.runtime.api import optimize
from support import assert_same_numbers, model, ops, run_passes

LOWEST = -3.4028234663852886e38
ATTENTION = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[B,S,8] x, {inputs}) => (float[B,S,8] y)
<int64[4] apart = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}, float half = {{0.5}}, float zero = {{0}},
 float low = {{{low}}}, int64[1] axis = {{1}}, int64[2] axes = {{1, 2}}> {{
  a = Reshape(x, apart) n = Neg(x) b = Reshape(n, apart) e = Abs(x) c = Reshape(e, apart)
  q = Transpose<perm=[0,2,1,3]>(a) k = Transpose<perm=[0,2,3,1]>(b) v = Transpose<perm=[0,2,1,3]>(c)
  m = MatMul(q, k) s = Mul(m, half) {lines} o = MatMul({p}, v) t = Transpose<perm=[0,2,1,3]>(o)
  y = Reshape(t, joined) }}"""
SOFTMAX = "p = Softmax<axis=-1>(u)"


def attention(lines: str, inputs: str = "bool[B,1,S,S] shown", low: float = LOWEST, p: str = "p") -> str:
    return ATTENTION.format(lines=lines, inputs=inputs, low=f"{low:e}", p=p)


def feeds(text: str) -> list[dict[str, np.ndarray]]:
    """Causal masks with padding, of one query and of several, and a batch of which one sees nothing at all."""
    rng, found = np.random.default_rng(0), []
    for batch, length in ((1, 1), (2, 5)):
        shown = np.tril(np.ones((batch, 1, length, length), bool))
        shown[-1, ..., -2:] &= length < 3
        hidden = shown.copy()
        hidden[0] = False
        for mask in (shown, hidden):
            given = {"x": rng.standard_normal((batch, length, 8)).astype(np.float32)}
            if "[B,S] shown" in text:
                given["shown"] = np.ascontiguousarray(mask[:, 0, -1])
            elif "shown" in text:
                given["shown"] = mask
            if "seen" in text:
                given["seen"] = shown[0, 0]
            if "float[B,1,S,S] mask" in text:
                given["mask"] = np.where(mask, 0, np.float32(LOWEST)).astype(np.float32)
            if "float[B,1,1,S] mask" in text:
                given["mask"] = np.where(mask[:, :, -1:], 0, np.float32(LOWEST)).astype(np.float32)
            if "bias" in text:
                given["bias"] = rng.standard_normal((1, 2, length, length)).astype(np.float32)
            found.append(given)
    return found


CHOICE = "u = Where(shown, s, low)"
ADDED = "w = Where(shown, zero, low) u = Add(s, w)"
GUARD = f"{SOFTMAX} nan = IsNaN(p) g = Where(nan, zero, p)"
ROW = "r = Unsqueeze(shown, axes)"


@pytest.mark.parametrize("low", [LOWEST, -np.inf])
@pytest.mark.parametrize(
    ("lines", "inputs", "p"),
    [
        (f"{CHOICE} {SOFTMAX}", "bool[B,1,S,S] shown", "p"),
        (f"hidden = Not(shown) u = Where(hidden, low, s) {SOFTMAX}", "bool[B,1,S,S] shown", "p"),
        (f"{ADDED} {SOFTMAX}", "bool[B,1,S,S] shown", "p"),
        (f"{ADDED} {GUARD}", "bool[B,1,S,S] shown", "g"),
        (f"{ROW} w = Where(r, zero, low) u = Add(s, w) {GUARD}", "bool[B,S] shown", "g"),
        (f"{ROW} u = Where(r, s, low) {SOFTMAX}", "bool[B,S] shown", "p"),
        (f"u = Add(s, mask) {SOFTMAX}", "float[B,1,1,S] mask", "p"),
        (f"i = Add(bias, s) {CHOICE.replace(' s,', ' i,')} {SOFTMAX}", "float[1,2,S,S] bias, bool[B,1,S,S] shown", "p"),
        (f"h = Where(shown, s, low) u = Add(mask, h) {SOFTMAX}", "bool[B,1,S,S] shown, float[B,1,S,S] mask", "p"),
        (f"h = Add(s, mask) u = Where(shown, h, low) {SOFTMAX}", "bool[B,1,S,S] shown, float[B,1,S,S] mask", "p"),
        (f"f = Constant<value = float[1,1,1,1] {{-1e38}}>() u = Where(seen, s, f) {SOFTMAX}", "bool[S,S] seen", "p"),
    ],
)
def test_masks_of_exporters(lines: str, inputs: str, p: str, low: float) -> None:
    text = attention(lines, inputs, low, p)
    compiled = optimize(model(text), target="ort")
    found = ops(compiled)
    assert found.count("MultiHeadAttention") == 1 and not {"Softmax", "IsNaN"} & set(found)
    assert_same_numbers(model(text), compiled, feeds(text))
    again = optimize(compiled, target="ort")
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("lines", "low"),
    [
        (f"{CHOICE} {SOFTMAX}", -1e4),  # a row that is hidden as a whole is a mean; the scores would count
        (f"{CHOICE} {SOFTMAX}", np.inf),
        (f"{ADDED} {SOFTMAX} nan = IsNaN(p) g = Where(nan, half, p)", LOWEST),
        (f"{ADDED} {SOFTMAX} nan = IsInf(p) g = Where(nan, zero, p)", LOWEST),
        (f"{ADDED} {SOFTMAX} nan = IsNaN(p) g = Where(nan, p, zero)", LOWEST),
        (f"u = Identity(s) {GUARD}", LOWEST),  # not by a mask
    ],
)
def test_others_stay(lines: str, low: float) -> None:
    text = attention(lines, low=low, p="g" if "g =" in lines else "p")
    compiled = optimize(model(text), target="ort")
    assert "MultiHeadAttention" not in ops(compiled)
    assert_same_numbers(model(text), compiled, feeds(text))


def test_layers_share_what_the_mask_takes() -> None:
    """The mask of one row for all queries is widened once, and so is what tells rows without a key."""
    text = attention(f"{ROW} w = Where(r, zero, low) u = Add(s, w) {GUARD}", "bool[B,S] shown", -np.inf, "g")
    head, layer = text[: text.index("a = Reshape")], text[text.index("a = Reshape") : text.rindex("}")]
    first = re.sub(r"\by\b", "z", layer)
    second = re.sub(r"\bx\b", "z", re.sub(r"\b(\w+) =", r"\1_2 =", layer))
    for name in re.findall(r"\b(\w+) =", layer):
        second = re.sub(rf"\b{name}([,)])", rf"{name}_2\1", second)
    twice = f"{head} {first} {second.replace('y_2 =', 'y =')} }}"
    compiled = optimize(model(twice), target="ort")
    found = ops(compiled)
    assert found.count("MultiHeadAttention") == 2 and found.count("Expand") == 1 and found.count("ReduceMax") == 1
    assert_same_numbers(model(twice), compiled, feeds(text))


@pytest.mark.parametrize("low", [LOWEST, -np.inf])
def test_a_triangle_cut_to_the_length(low: float) -> None:
    """A mask of Min(7, S) rows has S where it meets the scores."""
    triangle = ", ".join(str(float(j <= i)) for i in range(7) for j in range(7))
    cut = """whole = Shape(x) at = Gather(whole, second) len = Unsqueeze(at, one) rows = Slice(tri, one, len, two)
      both = Slice(rows, one, len, three) hidden = Equal(both, zero) u = Where(hidden, low, s) """
    constants = (
        f"<float[1,1,7,7] tri = {{{triangle}}}, int64 second = {{1}}, int64[1] one = {{0}}, int64[1] two = {{2}},"
    )
    text = attention(cut + SOFTMAX, "float[1] unused", low).replace(", float[1] unused", "")
    text = text.replace("<int64[4] apart", f"{constants} int64[1] three = {{3}}, int64[4] apart")
    compiled = optimize(model(text), target="ort")
    assert ops(compiled).count("MultiHeadAttention") == 1
    for length in (1, 2, 7):
        x = np.random.default_rng(length).standard_normal((2, length, 8)).astype(np.float32)
        assert_same_numbers(model(text), compiled, [{"x": x}])


def test_heads_that_share_keys_and_heads_that_are_normalized() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[B,S,8] x, float[B,S,4] z) => (float[B,S,8] y)
    <int64[4] apart = {0, 0, 2, 4}, int64[4] one = {0, 0, 1, 4}, int64[3] joined = {0, 0, 8}, float half = {0.5},
     float[4] scale = {1, 2, 3, 4}, int64[1] axis = {2}, int64[5] wide = {1, 1, 2, 1, 1},
     int64[4] all = {0, 2, -1, 4}> {
      a = Reshape(x, apart) h = LayerNormalization(a, scale) q = Transpose<perm=[0,2,1,3]>(h)
      b = Reshape(z, one) k = Transpose<perm=[0,2,1,3]>(b) ku = Unsqueeze(k, axis) ke = Expand(ku, wide)
      kr = Reshape(ke, all) kt = Transpose<perm=[0,1,3,2]>(kr)
      m = MatMul(q, kt) s = Mul(m, half) p = Softmax<axis=-1>(s) o = MatMul(p, kr)
      t = Transpose<perm=[0,2,1,3]>(o) y = Reshape(t, joined) }"""
    compiled = optimize(model(text), target="ort")
    assert "MultiHeadAttention" in ops(compiled) and "Softmax" not in ops(compiled)
    assert_same_numbers(model(text), compiled)


def test_queries_of_one_batch_with_keys_of_another_stay() -> None:
    """MatMul repeats the queries of one for all of the batch; the kernel refuses that."""
    text = attention(f"u = Identity(s) {SOFTMAX}").replace(
        "b = Reshape(n, apart)", "b0 = Reshape(n, apart) b = Add(b0, shift)"
    )
    text = text.replace("bool[B,1,S,S] shown", "float[C,1,1,1] shift")
    compiled = run_passes(text, "ort-attention")
    assert "MultiHeadAttention" not in ops(compiled)


def test_values_of_another_size_than_the_keys_stay_where_both_are_parts_of_one_tensor() -> None:
    """The kernel takes keys and values that stand apart by heads only in one size; LeViT's are Split."""
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[B,S,20] x) => (float[B,S,12] y)
    <int64[4] apart = {0, 0, 2, 10}, int64[3] sizes = {2, 2, 6}, int64[3] joined = {0, 0, 12}> {
      a = Reshape(x, apart) r = Transpose<perm=[0,2,1,3]>(a) q, k, v = Split<axis=3>(r, sizes)
      kt = Transpose<perm=[0,1,3,2]>(k) m = MatMul(q, kt) p = Softmax<axis=-1>(m) o = MatMul(p, v)
      t = Transpose<perm=[0,2,1,3]>(o) y = Reshape(t, joined) }"""
    for sizes, width, fused in (("{2, 2, 6}", 12, 0), ("{3, 3, 4}", 8, 0), ("{4, 4, 4}", 8, 1)):
        changed = text.replace("{2, 2, 6}", sizes).replace("{0, 0, 12}", f"{{0, 0, {width}}}")
        changed = changed.replace("B,S,12] y", f"B,S,{width}] y")
        if fused:
            changed = changed.replace("{0, 0, 2, 10}", "{0, 0, 2, 12}").replace("S,20]", "S,24]")
        compiled = optimize(model(changed), target="ort")
        assert ops(compiled).count("MultiHeadAttention") == fused
        assert_same_numbers(model(changed), compiled)


NUMBERS = ", ".join(f"{(i * 7 % 13 - 6) / 9:.3f}" for i in range(64))
LAYERS = f"""<ir_version: 8, opset_import: ["" : 17]> agraph (float[B,S,8] x, float[B,1,S,S] mask) => (float[B,S,8] y)
  <float[8,8] wq = {{{NUMBERS}}}, float[8,8] wk = {{{NUMBERS.replace("0.", "3.")}}},
   float[8,8] wv = {{{NUMBERS.replace("0.", "1.")}}},
   float[8] b = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[8] c = {{8, 7, 6, 5, 4, 3, 2, 1}}, float half = {{0.5}},
   int64[4] apart = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}> {{
  z = Neg(x) mq = MatMul(x, wq) mk = MatMul(x, wk) mv = MatMul(x, wv) aq = Add(mq, b) ak = Add(mk, c) av = Add(b, mv)
  rq = Reshape(aq, apart) rk = Reshape(ak, apart) rv = Reshape(av, apart) q = Transpose<perm=[0,2,1,3]>(rq)
  k = Transpose<perm=[0,2,3,1]>(rk) v = Transpose<perm=[0,2,1,3]>(rv) m = MatMul(q, k) s = Mul(m, half)
  u = Add(s, mask) p = Softmax(u) o = MatMul(p, v) t = Transpose<perm=[0,2,1,3]>(o) y = Reshape(t, joined) }}"""


@pytest.mark.parametrize(
    ("old", "new", "operator"),
    [
        ("", "", "Attention"),
        ("u = Add(s, mask)", "u = Identity(s)", "MultiHeadAttention"),
        ("mv = MatMul(x, wv)", "mv = MatMul(z, wv)", "MultiHeadAttention"),
        ("aq = Add(mq, b)", "aq = Sub(mq, b)", "MultiHeadAttention"),
        ("z = Neg(x) mq = MatMul(x, wq)", "mq = MatMul(x, wq) z = Neg(mq)", "MultiHeadAttention"),
    ],
)
def test_linear_layers_are_computed_by_the_kernel(old: str, new: str, operator: str) -> None:
    text = LAYERS.replace(old, new) if old else LAYERS
    if "z = Neg(mq)" in text:
        text = text.replace("=> (float[B,S,8] y)", "=> (float[B,S,8] y, float[B,S,8] z)")
    compiled = optimize(model(text), target="ort")
    assert [each for each in ops(compiled) if "Attention" in each] == [operator]
    assert_same_numbers(model(text), compiled)
