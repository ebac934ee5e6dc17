"""Promise: made-up inputs are seeded, have the signature's shapes, and respect the values that the graph implies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from pfvm.compiler.importer import read_model
from pfvm.errors import InputError, OptionError, PfvmError, SizeError
from pfvm.runtime.oracle import Oracle
from pfvm.runtime.synthesis import parse_shapes, synthesize, workable

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def model(text: str, opset: int = 17) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>' + text))


def values(text: str, name: str, **options: object) -> np.ndarray:
    """All values that twenty seeds give one input."""
    drawn = [synthesize(model(text), seed, **options)[name] for seed in range(20)]  # type: ignore[arg-type]
    return np.concatenate([np.ravel(v) for v in drawn])


def test_a_seed_fixes_the_data_and_names_separate_the_streams() -> None:
    first = "g (float[4] x, float[4] y) => (float[4] z) { z = Add (x, y) }"
    other = "g (float[4] y, int64[2] new, float[4] x) => (float[4] z) { z = Add (x, y) }"
    a, b = synthesize(model(first), 3), synthesize(model(other), 3)
    assert (a["x"] == b["x"]).all()
    assert (a["y"] == b["y"]).all()
    assert (a["x"] != a["y"]).any()
    assert (a["x"] != synthesize(model(first), 4)["x"]).any()


def test_symbols_have_one_size() -> None:
    text = "g (float[n,m,4] x, float[m,n] y, float[?] z) => (float[n] o) { o = ReduceSum <keepdims=0> (y, z) }"
    feeds = synthesize(model(text), size=5)
    assert feeds["x"].shape == (5, 5, 4)
    assert feeds["z"].shape == (5,)
    feeds = synthesize(model(text), shapes={"x": (7, 3, 4)})
    assert feeds["y"].shape == (3, 7)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1,)}, "no such input; inputs: 'x', 'y'"),
        ({"x": (1, 2)}, r"\[1, 2\] does not fit float\[n,4\]"),
        ({"x": (1, 4, 4)}, "does not fit"),
        ({"x": (2, 4), "y": (3,)}, "'n' is 3 here and 2 in another input"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        synthesize(model("g (float[n,4] x, float[n] y) => (float[n,4] z) { z = Add (x, x) }"), shapes=shapes)


def test_parse_shapes() -> None:
    assert parse_shapes(["x=1,3,224,224", "a=b=2", "s="]) == {"x": (1, 3, 224, 224), "a=b": (2,), "s": ()}
    for text in ("x", "x=a", "x=1,-2", "=3"):
        with pytest.raises(OptionError, match="expected NAME=DIM,DIM"):
            parse_shapes([text])


# ---- values that the graph implies


def test_indices_stay_inside_the_gathered_dim() -> None:
    text = "g (int64[b,s] ids, float[5,2] w) => (float[b,s,2] y) { y = Gather (w, ids) }"
    assert set(values(text, "ids").tolist()) == {0, 1, 2, 3, 4}


def test_indices_through_moves_casts_and_shifts() -> None:
    text = """g (int32[b,s] ids, float[2,7] w) => (float[?,?,?] y) <int64[1] shape = {-1}, int64 two = {2}>
    { flat = Reshape (ids, shape)  long = Cast <to=7> (flat)  t = Identity (long)  up = Add (t, two)
      y = Gather <axis=1> (w, up) }"""
    assert set(values(text, "ids", size=4).tolist()) == {-2, -1, 0, 1, 2, 3, 4}


def test_indices_of_a_symbolic_dim_and_of_gather_nd() -> None:
    text = "g (int64[3] i, float[n,4] w) => (float[3,4] y) { y = Gather (w, i) }"
    assert set(values(text, "i", size=9).tolist()) == set(range(9))
    text = "g (int64[4,2] i, float[6,3] w) => (float[4] y) { y = GatherND (w, i) }"
    assert set(values(text, "i").tolist()) == {0, 1, 2}


def test_indices_used_inside_a_body_and_a_function() -> None:
    text = """g (int64[2] i, bool c, float[6] w) => (float[2] y)
    { y = If (c) <then_branch = a () => (float[2] t) { t = Gather (w, i) },
                  else_branch = b () => (float[2] e) { e = Gather (w, i) }> }"""
    assert values(text, "i").max() == 5
    function = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (int64[2] i, float[6] w) => (float[2] y) { y = f.pick (w, i) }
    <domain: "f", opset_import: ["" : 17]> pick (data, k) => (o) { one = Identity (k)  o = Gather (data, one) }"""
    loaded = ir.from_proto(onnx.parser.parse_model(function))
    drawn = np.concatenate([synthesize(loaded, seed)["i"] for seed in range(9)])
    assert drawn.min() == drawn.max() == 0, "the function does not say how large its data is: only 0 is sure"


@pytest.mark.parametrize(
    ("text", "name", "allowed"),
    [
        ("g (int64[b,4] m) => (bool[b,4] y) { y = Cast <to=9> (m) }", "m", {0, 1}),
        (
            "g (int64[4] m) => (float[4] y) <float one = {1}> { f = Cast <to=1> (m)  y = Sub (one, f) }",
            "m",
            {0, 1},
        ),
        ("g (int64[3] i, float[2] v) => (float[3,9] y) <int64 d = {9}> { y = OneHot (i, d, v) }", "i", set(range(9))),
        ("g (int64[2] s) => (float[?,?] y) { y = ConstantOfShape (s) }", "s", {1, 2, 3}),
        ("g (int64 a, int64 b, int64 c) => (int64[?] y) { y = Range (a, b, c) }", "c", {1}),
        ("g (int64[2] a, int64[2] b) => (int64[2] y) { y = Div (a, b) }", "b", {1, 2, 3}),
        ("g (float[6] x, int64[2] s) => (float[2] a, float[4] b) { a, b = Split (x, s) }", "s", {3}),
        ("g (float[2,6] x, int64[3] s) => (float[3,2,2] y) { y = Reshape (x, s) }", "s", {2, 3}),
    ],
)
def test_masks_depths_shapes_and_divisors(text: str, name: str, allowed: set[int]) -> None:
    assert set(values(text, name).tolist()) == allowed


def test_lengths_of_a_recurrent_layer() -> None:
    text = """g (float[5,b,3] x, float[1,8,3] w, float[1,8,2] r, int32[b] n) => (float[5,1,b,2] y)
    { y = LSTM <hidden_size=2> (x, w, r, , n) }"""
    assert set(values(text, "n", size=4).tolist()) == {1, 2, 3, 4, 5}


def test_floats_are_normal_even_as_divisors() -> None:
    drawn = values("g (float[50] a, float[50] b) => (float[50] y) { y = Div (a, b) }", "b")
    assert drawn.dtype == np.float32
    assert abs(float(drawn.mean())) < 0.1
    assert 0.9 < float(drawn.std()) < 1.1


def test_zero_fill_stays_in_the_range() -> None:
    text = "g (float[2] x, int64[2] s, bool b) => (float[?,?] y) { y = ConstantOfShape (s) }"
    feeds = synthesize(model(text), fill="zero")
    assert feeds["x"].tolist() == [0, 0]
    assert feeds["s"].tolist() == [1, 1]
    assert not feeds["b"]


def test_large_fill_is_beyond_what_saturates_on_both_sides() -> None:
    drawn = synthesize(model("g (float[50] x, bool b) => (float[50] y) { y = Neg (x) }"), fill="large")["x"]
    assert drawn.dtype == np.float32 and drawn.min() < -8 and drawn.max() > 8
    assert (np.abs(drawn) >= 8).all() and (np.abs(drawn) <= 16).all()


def test_strings_sequences_and_unsupported() -> None:
    feeds = synthesize(model("g (string[3] s, seq(float[2]) q) => (string[3] y) { y = Identity (s) }"))
    assert feeds["s"].dtype == object
    assert [v.shape for v in feeds["q"]] == [(2,), (2,)]
    untyped = ir.Model(ir.Graph([ir.Value(name="x")], [], nodes=[], opset_imports={"": 17}), ir_version=8)
    with pytest.raises(InputError, match=r"input 'x' .* give --inputs"):
        synthesize(untyped)


def test_sizes_grow_until_the_model_accepts_them() -> None:
    padded = model('g (float[1,n] x) => (float[1,?] y) <int64[4] p = {0,9,0,9}> { y = Pad <mode="reflect"> (x, p) }')
    feeds, outputs = workable(padded, Oracle(padded))
    assert feeds["x"].shape[1] > 9
    assert outputs["y"].shape[1] == feeds["x"].shape[1] + 18
    never = model("g (float[2] x) => (float[3] y) <int64[1] s = {3}> { y = Reshape (x, s) }")
    with pytest.raises(InputError, match=r"no made-up data fits the model; give --inputs \("):
        workable(never, Oracle(never))


def test_shapes_that_the_caller_gives_are_tried_once() -> None:
    calls = []

    def refuse(feeds: dict) -> dict:
        calls.append(feeds)
        raise InputError("too short")

    with pytest.raises(InputError, match=r"give --inputs \(too short\)"):
        workable(model("g (float[n,4] x) => (float[n,4] y) { y = Relu (x) }"), refuse, shapes={"x": (6, 4)})
    assert len(calls) == 1


def test_a_size_that_the_caller_fixed_is_not_blamed_on_made_up_data() -> None:
    pytest.importorskip("jax")
    rows = model("g (float[n,4] x) => (float[n,4] y) { y = Relu (x) }")
    spread = pfvm.load(rows, "xla:cpu", mesh="data=4")
    assert workable(rows, spread)[0]["x"].shape == (8, 4)
    with pytest.raises(SizeError, match=r"^input 'x' \[6, 4\]: its batch"):
        workable(rows, spread, shapes={"x": (6, 4)})
    padded = pfvm.load(rows, "xla:cpu", bucket={"n": [2, 4]})
    with pytest.raises(SizeError, match=r"^input 'x': dim 0 \('n'\) is 6, more than the largest bucket"):
        workable(rows, padded, shapes={"x": (6, 4)})
    with pytest.raises(InputError, match="no made-up data fits the model; give --inputs or --shape"):
        workable(rows, pfvm.load(rows, "xla:cpu", mesh="data=7"))


def test_a_batch_that_stands_behind_a_fixed_dim() -> None:
    """As the state of a recurrent layer's: the batch of `x` has to be its batch, too, while the length grows."""
    loaded = model(
        """g (float[?,?] x, float[2,?,4] s) => (float[?,?] y, float[2,?,?] z)
        <int64[4] p = {0,9,0,9}, int64[2] a = {0,0}, int64[2] b = {1000,4}>
        { y = Pad <mode="reflect"> (x, p)  h = Concat <axis=1> (y, y)  l = Slice (h, a, b)  z = Add (s, l) }"""
    )
    feeds, _ = workable(loaded, Oracle(loaded))
    assert feeds["s"].shape[1] == feeds["x"].shape[0] and feeds["x"].shape[1] > 9


def test_a_flag_takes_the_value_that_the_graph_asks_for() -> None:
    loaded = model(
        """g (int64 rate, float[2] x) => (float[2] y) <int64 one = {1}, int64 known = {16001}>
        { r = Add (rate, one)  is = Equal (r, known)
          y = If (is) <then_branch = t () => (float[2] a) { a = Neg (x) },
                       else_branch = e () => (float[2] b) { b = Identity (x) }> }"""
    )
    assert [int(synthesize(loaded, seed)["rate"]) == 16000 for seed in (0, 1, 2)] == [True, False, True]


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "corpus").is_dir(), reason="../shared/corpus is not here")
def test_most_models_of_the_corpus_run_on_made_up_inputs() -> None:
    failed, ran = [], 0
    for name in json.loads((SHARED / "corpus/manifest.json").read_text()):
        try:
            loaded = read_model(SHARED / "corpus" / name)
            oracle = Oracle(loaded)
        except PfvmError:
            continue  # not what this test is about
        try:
            workable(loaded, oracle)
            ran += 1
        except InputError as error:
            failed.append(f"{name}: {error}")
    assert ran > 700
    assert len(failed) <= 4, failed


def test_a_batch_does_not_grow_with_what_has_a_least_size() -> None:
    tried: list[tuple[int, ...]] = []

    def run(feeds: dict) -> dict:
        tried.append(feeds["x"].shape)
        raise InputError("too short")

    with pytest.raises(InputError, match="no made-up data"):
        workable(model("agraph (float[B,S] x) => (float[B,S] y) { y = Exp(x) }"), run)
    assert max(shape[0] for shape in tried) == 64 and max(shape[1] for shape in tried) >= 4096
    tried.clear()
    with pytest.raises(InputError, match="no made-up data"):
        workable(model("agraph (float[T,4] x) => (float[T,4] y) { y = Exp(x) }"), run)
    assert max(shape[0] for shape in tried) >= 4096, "the only open dim, of which there may be a least size"
