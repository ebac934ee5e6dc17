"""eliminate-identity removes what hands its input on unchanged, and nothing else."""

from __future__ import annotations

import pytest
from support import assert_becomes, assert_same_numbers, assert_stays, model, ops, run_passes

PASS = "eliminate-identity"
RELU = "agraph (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    "line",
    [
        "a = Identity(x)",
        "a = Cast <to = 1> (x)",
        "a = CastLike(x, x)",
        "a = Transpose <perm = [0, 1]> (x)",
        "a = Dropout(x)",
        "s = Constant <value = int64[2] {0, 3}> () a = Reshape(x, s)",
        "s = Constant <value = int64[2] {-1, 3}> () a = Reshape(x, s)",
        "s = Constant <value = int64[2] {1, 3}> () a = Expand(x, s)",
        "a = Flatten(x)",
        "s = Constant <value = int64[2] {1, 1}> () a = Tile(x, s)",
        "s = Constant <value = int64[4] {0, 0, 0, 0}> () a = Pad(x, s)",
        "b = Constant <value_ints = [0]> () e = Constant <value_ints = [3]> () d = Constant <value_ints = [1]> () "
        "a = Slice(x, b, e, d)",
        "a = Concat <axis = 0> (x)",
        "a = Sum(x)",
        "a = Split(x)",
        "a = ReduceSum <noop_with_empty_axes = 1> (x)",
        "s = Constant <value_float = 0.0> () a = Add(x, s)",
        "s = Constant <value_float = 0.0> () a = Add(s, x)",
        "s = Constant <value = float[1,1] {1}> () a = Mul(x, s)",
        "s = Constant <value_float = 0.0> () a = Sub(x, s)",
        "s = Constant <value_float = 1.0> () a = Div(x, s)",
        "s = Constant <value_float = 1.0> () a = Pow(x, s)",
    ],
)
def test_no_op_goes(line: str) -> None:
    assert_becomes(
        f"agraph (float[N,3] x) => (float[N,3] y) {{ {line} y = Relu(a) }}", RELU, PASS, "eliminate-dead-code"
    )


@pytest.mark.parametrize(
    "line",
    [
        "a = Cast <to = 11> (x) b = Cast <to = 1> (a)",  # float → double → float is another matter
        "b = Transpose <perm = [1, 0]> (x)",
        "s = Constant <value_float = 0.000001> () b = Add(x, s)",
        "s = Constant <value_float = 1.000001> () b = Mul(x, s)",
        "s = Constant <value_float = 0.0> () b = Sub(s, x)",
        "s = Constant <value_float = 1.0> () b = Div(s, x)",
        "s = Constant <value = float[1,1,1] {1}> () b = Mul(x, s)",  # one rank more
        "s = Constant <value = int64[2] {2, 1}> () b = Tile(x, s)",
        "s = Constant <value = int64[2] {3, 3}> () b = Reshape(x, s)",  # N may be anything
        "b = ReduceSum(x)",
        "f = Constant <value_ints = [0]> () e = Constant <value_ints = [-1]> () b = Slice(x, f, e)",
    ],
)
def test_what_only_looks_like_a_no_op_stays(line: str) -> None:
    from support import model, ops, run_passes

    text = f"agraph (float[N,3] x) => (float y) {{ {line} y = ReduceSum <keepdims = 0> (b) }}"
    before = [node.op_type for node in model(text).graph.node if node.op_type != "Constant"]
    assert ops(run_passes(text, PASS)) == before


def test_training_dropout_stays() -> None:
    text = """agraph (float[N,3] x) => (float[N,3] y) {
        r = Constant <value_float = 0.5> () t = Constant <value = bool {1}> ()
        a = Dropout <seed = 1> (x, r, t) y = Relu(a) }"""
    from support import ops, run_passes

    assert ops(run_passes(text, PASS)) == ["Dropout", "Relu"]


def test_a_dropout_whose_mask_alone_is_read_stays() -> None:
    assert_stays("agraph (float[N,3] x) => (bool[N,3] m) { a, m = Dropout(x) }", PASS)


def test_a_graph_output_keeps_its_name_and_a_value_of_its_own() -> None:
    assert_becomes(
        "agraph (float[N,3] x) => (float[N,3] y) { a = Relu(x) y = Identity(a) }",
        "agraph (float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
        PASS,
    )
    assert_stays("agraph (float[N,3] x) => (float[N,3] y) { y = Identity(x) }", PASS)
    assert_stays("agraph (float[N,3] x) => (float[N,3] y, float[N,3] z) { y = Relu(x) z = Identity(y) }", PASS)


def test_read_twice() -> None:
    assert_becomes(
        "agraph (float[N,3] x) => (float[N,3] y) { a = Identity(x) y = Add(a, a) }",
        "agraph (float[N,3] x) => (float[N,3] y) { y = Add(x, x) }",
        PASS,
    )


LOOP = """agraph (float[2] x) => (float[2] y) {{
    m = Constant <value = int64 {{3}}> () c = Constant <value = bool {{1}}> ()
    {outer}
    y = Loop (m, c, x) <body = b (int64 i, bool go, float[2] s) => (bool again, float[2] t) {{
        again = Identity(go) {inner} }}> }}"""


def test_in_a_loop_body_and_captured() -> None:
    assert_becomes(
        LOOP.format(outer="k = Identity(x)", inner="u = Identity(s) t = Add(u, k)"),
        LOOP.format(outer="", inner="t = Add(s, x)"),
        PASS,
    )


FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
agraph (float[N,3] x) => (float[N,3] y) {{ y = my.F(x) }}
<domain: "my", opset_import: ["" : 17]> F (a) => (b) {{ {inner} }}"""


def test_in_a_local_function() -> None:
    compiled = assert_becomes(
        FUNCTION.format(inner="c = Identity(a) d = Relu(c) b = Neg(d)"),
        FUNCTION.format(inner="d = Relu(a) b = Neg(d)"),
        PASS,
    )
    assert [node.op_type for node in compiled.functions[0].node] == ["Relu", "Neg"]


def test_a_reduction_of_single_numbers_goes() -> None:
    assert_becomes(
        "agraph (float[N,1] x) => (float[N,1] y) { a = ReduceMax <axes = [1]> (x) y = Relu(a) }",
        "agraph (float[N,1] x) => (float[N,1] y) { y = Relu(x) }",
        PASS,
    )


def test_clip_without_bounds_is_nothing_to_integers_but_bounds_infinities() -> None:
    text = "agraph (int32[N] x) => (int32[N] y) { a = Clip(x) y = Neg(a) }"
    assert_becomes(text, text.replace("a = Clip(x) y = Neg(a)", "y = Neg(x)"), PASS)
    assert_stays("agraph (float[N] x) => (float[N] y) { a = Clip(x) y = Neg(a) }", PASS)


STATES = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[L,B,3] x, float[2,16,3] w, float[2,16,4] r) => (float[L,2,B,4] y)
<int64[1] two = {{2}}, int64[1] four = {{{size}}}, int64[1] k1 = {{1}}, int64[1] k2 = {{2}}> {{
  shape = Shape(x) b = Slice(shape, {cut}) s = Concat<axis=0>(two, b, four)
  z = ConstantOfShape <value = float[1] {{{number}}}> (s)
  y, h, c = LSTM<direction="bidirectional", hidden_size=4>(x, w, r, , , {states}) }}"""


@pytest.mark.parametrize(
    ("states", "number", "cut", "left"),
    [
        ("z, z", 0, "k1, k2", ["LSTM"]),
        ("z", 0, "k1, k2", ["LSTM"]),
        (", z", 0, "k1, k2", ["LSTM"]),
        ("z, z", 1, "k1, k2", None),
    ],
)
def test_a_recurrent_operator_starts_from_zeros(states: str, number: int, cut: str, left: list[str] | None) -> None:
    text = STATES.format(size=4, number=number, cut=cut, states=states)
    compiled = run_passes(text, "eliminate-identity", "eliminate-dead-code")
    assert ops(compiled) == (left or ops(run_passes(text, "eliminate-dead-code")))
    if left:
        assert [len(node.input) for node in compiled.graph.node] == [3]
    assert_same_numbers(model(text), compiled)
    other = STATES.format(size=4, number=0, cut="two, k2", states=states)  # no dim at all: an error, as before
    assert "ConstantOfShape" in ops(run_passes(other, "eliminate-identity", "eliminate-dead-code"))


@pytest.mark.parametrize(("second", "left"), [("0", ["LSTM"]), ("-0", None), ("1", None)])
def test_zeros_that_are_put_together(second: str, left: list[str] | None) -> None:
    """As TensorFlow's exporter writes them: one state, expanded, with an axis before it, for each direction."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[L,B,3] x, float[2,16,3] w, float[2,16,4] r) => (float[L,2,B,4] y)
    <int64[1] four = {{4}}, int64[1] k1 = {{1}}, int64[1] k2 = {{2}}, int64[1] k0 = {{0}}, float zero = {{0}},
     float[1] o = {{{second}}}> {{
      shape = Shape(x) b = Slice(shape, k1, k2) s = Concat<axis=0>(b, four) e = Expand(zero, s) u = Unsqueeze(e, k0)
      f = Expand(o, s) v = Unsqueeze(f, k0) z = Concat<axis=0>(u, v)
      y, h, c = LSTM<direction="bidirectional", hidden_size=4>(x, w, r, , , z, z) }}"""
    compiled = run_passes(text, "eliminate-identity", "eliminate-dead-code")
    assert ops(compiled) == (left or ops(run_passes(text, "eliminate-dead-code")))
    assert_same_numbers(model(text), compiled)


def test_one_value_put_together_many_times_is_looked_at_once() -> None:
    joined = "".join(f" z{i + 1} = Concat<axis=0>({', '.join([f'z{i}'] * 40)})" for i in range(5))
    text = f"""<ir_version: 8, opset_import: ["" : 17]> agraph (float[1,2] x, int64[2] s) => (float[a,b] y) {{
      z0 = ConstantOfShape<value = bool[1] {{0}}>(s) {joined} n = Neg(x) y = Where(z5, x, n) }}"""
    assert ops(run_passes(text, "simplify-selection"))[-1] == "Where"
