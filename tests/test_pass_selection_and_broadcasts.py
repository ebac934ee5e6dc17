"""simplify-selection and drop-broadcasts: what chooses or repeats without need."""

from __future__ import annotations

import numpy as np
import pytest
from support import assert_same_numbers, assert_stays, model, ops, run_passes

SELECT, BROADCAST = ("simplify-selection", "eliminate-dead-code"), ("drop-broadcasts", "eliminate-dead-code")

ROWS = "r = Constant <value = int64[3] {0, 1, 2}> () c = Constant <value = int64[3,1] {0, 1, 2}> ()"
ZEROS = "s = Constant <value = int64[2] {3, 4}> () z = ConstantOfShape(s)"
SIMPLER = {
    "not": ("n = Not(m) y = Where(n, a, b)", ["Where"]),
    "not, read twice": ("n = Not(m) t = Where(n, a, b) y = Where(n, t, a)", ["Where", "Where"]),
    "equal branches": ("t = Where(m, a, a) y = Neg(t)", ["Neg"]),
    "always": ("k = Constant <value = bool[1,4] {1, 1, 1, 1}> () t = Where(k, a, b) y = Neg(t)", ["Neg"]),
    "never": ("k = Constant <value = bool {0}> () t = Where(k, a, b) y = Neg(t)", ["Neg"]),
    "gather": (f"{ROWS} t = Gather(a, r) y = Neg(t)", ["Neg"]),
    "scatter": (f"{ROWS} t = ScatterND(a, c, b) y = Neg(t)", ["Neg"]),
    "scatter onto zeros": (f'{ROWS} {ZEROS} t = ScatterND <reduction = "add"> (z, c, b) y = Neg(t)', ["Neg"]),
}
FRAME = "agraph (bool[3,4] m, float[3,4] a, float[3,4] b) => (float[3,4] y) {{ {} }}"


@pytest.mark.parametrize(("lines", "expected"), SIMPLER.values(), ids=list(SIMPLER))
def test_a_known_selection_goes(lines: str, expected: list[str]) -> None:
    compiled = run_passes(FRAME.format(lines), *SELECT)
    assert ops(compiled) == expected
    assert_same_numbers(model(FRAME.format(lines)), compiled)


@pytest.mark.parametrize(
    "lines",
    [
        "k = Constant <value = bool[1,4] {1, 1, 0, 1}> () y = Where(k, a, b)",
        "k = Constant <value = int64[3] {0, 2, 1}> () y = Gather(a, k)",
        'c = Constant <value = int64[3,1] {0, 1, 2}> () y = ScatterND <reduction = "add"> (a, c, b)',
        "c = Constant <value = int64[2,1] {0, 1}> () q = Constant <value = int64[2] {0, 1}> () u = Gather(b, q) "
        "y = ScatterND(a, c, u)",
    ],
)
def test_other_selections_stay(lines: str) -> None:
    assert_stays(FRAME.format(lines), SELECT[0])


def test_a_where_that_widens_stays() -> None:
    assert_stays(
        "agraph (bool[3,4] m, float[4] a) => (float[3,4] y) { y = Where(m, a, a) }",
        SELECT[0],
    )


def test_not_a_number_is_chosen_as_before() -> None:
    text = FRAME.format("n = Not(m) y = Where(n, a, b)")
    feeds = {"m": np.eye(3, 4) > 0, "a": np.full((3, 4), np.nan, np.float32), "b": np.full((3, 4), np.inf, np.float32)}
    assert_same_numbers(model(text), run_passes(text, *SELECT), [feeds])


ONE_HOT = """agraph (int64[5,1] t) => (bool[5,3] y) {{ k = Constant <value = int64[3] {{0, 1, 2}}> ()
    i = Constant <value = int64 {{{ignored}}}> () e = Equal(k, t) q = Equal(t, i) n = Not(q) y = And(e, n) }}"""


def test_a_one_hot_matrix_is_false_at_an_ignored_label_that_is_no_class() -> None:
    text = ONE_HOT.format(ignored=-100)
    compiled = run_passes(text, *SELECT)
    assert ops(compiled) == ["Equal"]
    labels = np.array([[0], [-100], [2], [1], [7]])
    assert_same_numbers(model(text), compiled, [{"t": labels}])
    assert_stays(ONE_HOT.format(ignored=1), SELECT[0])


NARROWER = {
    "expand": ("k = Constant <value = int64[2] {3, 4}> () e = Expand(s, k) y = Mul(a, e)", ["Mul"]),
    "filled": ("k = Constant <value = int64[2] {3, 4}> () e = ConstantOfShape(k) y = Where(m, e, a)", ["Where"]),
    "both": ("k = Constant <value = int64[2] {3, 4}> () e = Expand(s, k) y = Mul(e, e)", ["Expand", "Mul"]),
}


@pytest.mark.parametrize(("lines", "expected"), NARROWER.values(), ids=list(NARROWER))
def test_elementwise_operators_broadcast_themselves(lines: str, expected: list[str]) -> None:
    text = f"agraph (bool[3,4] m, float[3,4] a, float[1] s) => (float[3,4] y) {{ {lines} }}"
    compiled = run_passes(text, *BROADCAST)
    assert ops(compiled) == expected
    assert_same_numbers(model(text), compiled)


def test_equal_numbers_become_one_and_a_bias_stays() -> None:
    text = """agraph (float[3,4] a) => (float[3,4] y) { k = Constant <value = float[4] {2, 2, 2, 2}> ()
        w = Constant <value = float[3,4] {3,3,3,3,3,3,3,3,3,3,3,3}> () t = Add(a, k) y = Mul(t, w) }"""
    compiled = run_passes(text, *BROADCAST)
    assert sorted(list(t.dims) for t in compiled.graph.initializer) == [[], [4]]
    assert_same_numbers(model(text), compiled)


def test_symbolic_dims_are_proved_not_guessed() -> None:
    """N might be 1 where M is not: then the Expand decides the shape."""
    text = """agraph (float[N,4] a, float[1] s, float[M,4] b) => (float[K,4] y) {
        k = Shape(b) e = Expand(s, k) y = Mul(a, e) }"""
    assert_stays(text, BROADCAST[0])


def test_in_a_loop_body() -> None:
    text = """agraph (float[3,4] a, bool[3,4] m) => (float[3,4] y) {
        n = Constant <value = int64 {2}> () c = Constant <value = bool {1}> ()
        y = Loop (n, c, a) <body = b (int64 i, bool go, float[3,4] p) => (bool again, float[3,4] q) {
            again = Identity(go) k = Not(m) q = Where(k, p, a) }> }"""
    compiled = run_passes(text, *SELECT)
    assert [n.op_type for n in compiled.graph.node[0].attribute[0].g.node] == ["Identity", "Where"]
    assert_same_numbers(model(text), compiled)


SIZES = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N,3,4] x, float[1,3,1] w) => (float[N,3,4] y)
<int64[1] k0 = {{0}}, int64[1] k1 = {{1}}, int64[1] n = {{{first}}}, int64[1] m = {{-1}}, int64[1] four = {{4}},
 int64[3] none = {{{none}}}, int64[3] ones = {{1, 1, 1}}> {{
  shape = Shape(x) {size} s = Concat<axis=0>({parts}) q = Equal(s, none) t = Where(q, ones, s) e = Expand(w, t)
  y = Add(x, e) }}"""
PICKED = "b = Slice(shape, k0, k1)"


@pytest.mark.parametrize(
    ("size", "parts", "none", "goes"),
    [
        (PICKED, "b, m, four", "-1, -1, -1", True),
        ("g = Gather(shape, k0) h = Squeeze(g, k0) b = Unsqueeze(h, k0)", "b, m, four", "-1, -1, -1", True),
        (PICKED, "b, m, four", "1, -1, -1", False),
        (f"{PICKED} d = Sub(b, k1) b2 = Add(d, k1)", "b2, m, four", "-1, -1, -1", False),
    ],
)  # fmt: skip
def test_sizes_that_a_target_gives(size: str, parts: str, none: str, goes: bool) -> None:
    text = SIZES.format(first=3, size=size, parts=parts, none=none)
    compiled = run_passes(text, *SELECT)
    assert ("Where" not in ops(compiled)) == goes
    assert_same_numbers(model(text), compiled)
