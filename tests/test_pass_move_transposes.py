"""move-transposes: layouts change where fewer Transposes are left."""

from __future__ import annotations

import pytest
from pass_settings import assert_rewritten
from support import assert_stays, ops, run_passes

PASS = "move-transposes"
THERE, BACK = "Transpose <perm = [0, 2, 3, 1]>", "Transpose <perm = [0, 3, 1, 2]>"
FRAME = "agraph (float[2,3,4,5] x, float[2,3,4,5] z) => (float[{}] y) {{ {} }}"
SAME = "2,3,4,5"
K = "k = Constant <value = float[3] {0.5, 2, 3}> ()"
AXES = "q = Constant <value = int64[2] {1, 2}> ()"
PADS = "q = Constant <value = int64[8] {0, 1, 2, 0, 0, 0, 0, 3}> ()"
ENDS = "f = Constant <value = int64[2] {1, 0}> () e = Constant <value = int64[2] {3, 2}> () "
ENDS += "c = Constant <value = int64[2] {-2, 3}> ()"

FREED = {
    "a pair": (SAME, f"a = {THERE}(x) b = {BACK}(a) y = Relu(b)", ["Relu"]),
    "unary": (SAME, f"a = {THERE}(x) b = Relu(a) y = {BACK}(b)", ["Relu"]),
    "bias": (SAME, f"{K} a = {THERE}(x) b = Mul(a, k) c = Relu(b) y = {BACK}(c)", ["Mul", "Relu"]),
    "two operands": (SAME, f"a = {THERE}(x) b = {THERE}(z) c = Add(a, b) y = {BACK}(c)", ["Add"]),
    "two into one": (
        "2,4,5,3",
        f"a = {THERE}(x) b = {THERE}(z) y = Add(a, b)",
        ["Add", "Transpose"],
    ),
    "where": (
        SAME,
        f"a = {THERE}(x) b = {THERE}(z) m = Less(a, b) c = Where(m, a, b) y = {BACK}(c)",
        ["Less", "Where"],
    ),
    "concat": (
        "2,6,4,5",
        f"a = {THERE}(x) b = {THERE}(z) c = Concat <axis = 3> (a, b) y = {BACK}(c)",
        ["Concat"],
    ),
    "split": (
        "2,3,2,5",
        f"a = {THERE}(x) b, c = Split <axis = 1> (a) d = Mul(b, c) y = {BACK}(d)",
        ["Split", "Mul"],
    ),
    "softmax": (SAME, f"a = {THERE}(x) b = Softmax <axis = -1> (a) y = {BACK}(b)", ["Softmax"]),
    "mean, kept": ("2,3,1,1", f"a = {THERE}(x) b = ReduceMean <axes = [1, 2]> (a) y = {BACK}(b)", ["ReduceMean"]),
    "mean": (
        "2,3",
        f"a = {THERE}(x) b = Relu(a) y = ReduceMean <axes = [1, 2], keepdims = 0> (b)",
        ["Relu", "ReduceMean"],
    ),
    "sum by input": (
        "2,3",
        f"{AXES} a = {THERE}(x) y = ReduceSum <keepdims = 0> (a, q)",
        ["ReduceSum"],
    ),
    "pad": ("2,6,5,7", f"{PADS} a = {THERE}(x) b = Pad(a, q) y = {BACK}(b)", ["Pad"]),
    "slice": (
        "2,2,4,2",
        f"{ENDS} a = {THERE}(x) t = Slice(a, f, e, c) b = Add(t, t) y = {BACK}(b)",
        ["Slice", "Add"],
    ),
    "resize": (
        "2,3,8,5",
        "s = Constant <value = float[4] {1, 2, 1, 1}> () "
        f"a = {THERE}(x) b = Resize <mode = 'linear'> (a, , s) y = {BACK}(b)".replace("'", '"'),
        ["Resize"],
    ),
    "resize to sizes": (
        "2,3,6,7",
        "s = Constant <value = int64[4] {2, 6, 7, 3}> () "
        f"a = {THERE}(x) b = Resize <mode = 'nearest'> (a, , , s) y = {BACK}(b)".replace("'", '"'),
        ["Resize"],
    ),
    "squeeze": (
        "2,4,5",
        "q = Constant <value = int64[1] {-1}> () o = Constant <value = int64[1] {3}> () "
        f"a = {THERE}(x) b = ReduceSum(a, o) c = Relu(b) y = Squeeze(c, q)",
        ["ReduceSum", "Relu", "Squeeze"],
    ),
    "cast": (SAME, f"a = {THERE}(x) b = Cast <to = 11> (a) c = Cast <to = 1> (b) y = {BACK}(c)", ["Cast", "Cast"]),
    "argmax": (
        "2,1,4,5",
        f"a = {THERE}(x) b = ArgMax <axis = 3> (a) c = Cast <to = 1> (b) y = {BACK}(c)",
        ["ArgMax", "Cast"],
    ),
}


@pytest.mark.parametrize(("shape", "lines", "expected"), FREED.values(), ids=list(FREED))
def test_a_sandwich_loses_its_transposes(shape: str, lines: str, expected: list[str]) -> None:
    compiled = assert_rewritten(FRAME.format(shape, lines), expected, PASS)
    assert ops(compiled).count("Transpose") <= 1


@pytest.mark.parametrize(
    "lines",
    [
        f"a = {THERE}(x) y = Relu(a)",
        f"a = {THERE}(x) b = Relu(a) c = {BACK}(b) d = {THERE}(c) y = Add(d, b)",
    ],
)
def test_no_transpose_moves_without_gain(lines: str) -> None:
    compiled = run_passes(FRAME.format("2,4,5,3", lines), PASS)
    assert ops(compiled).count("Transpose") == 1


def test_a_softmax_over_flattened_dims_stays() -> None:
    text = '<ir_version: 8, opset_import: ["" : 11]>' + FRAME.format(
        SAME, f"a = {THERE}(x) b = Softmax <axis = 1> (a) y = {BACK}(b)"
    )
    assert_stays(text, PASS)


def test_an_interpolation_keeps_batch_and_channels_in_front() -> None:
    text = FRAME.format(
        "2,6,4,5",
        "s = Constant <value = float[4] {1, 1, 1, 2}> () "
        f'a = {THERE}(x) b = Resize <mode = "linear"> (a, , s) y = {BACK}(b)',
    )
    assert_stays(text, PASS)


def test_symbolic_dims() -> None:
    text = f"""agraph (float[N,3,H,W] x, float[N,3,H,W] z) => (float[N,3,H,W] y) {{
        {K} a = {THERE}(x) b = {THERE}(z) c = Add(a, k) d = Mul(b, c) y = {BACK}(d) }}"""
    assert_rewritten(text, ["Add", "Mul"], PASS)


@pytest.mark.parametrize(("kind", "rows", "outputs"), [("string", 1, ""), ("float", 1200, ", float[1200,2] w")])
def test_a_cut_of_strings_or_of_a_large_output_stays(kind: str, rows: int, outputs: str) -> None:
    content = ", ".join(['"a"' if kind == "string" else "1"] * (2 * rows))
    compiled = run_passes(
        f"""agraph (int64[1] n) => ({kind}[2,M] y{outputs}) <{kind}[{rows},2] w = {{{content}}}, int64[1] o = {{0}}> {{
            s = Slice(w, o, n, o) y = Transpose <perm = [1, 0]> (s) }}""",
        PASS,
    )
    assert ops(compiled) == ["Slice", "Transpose"]
