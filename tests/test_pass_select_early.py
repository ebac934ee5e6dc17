"""select-early: the token that a classifier reads is the only one that the last layer computes."""

from __future__ import annotations

import onnx
import pytest
from pass_settings import assert_rewritten
from support import assert_same_numbers, assert_stays, model, ops, run_passes

PASS = "select-early"
HEAD = """<ir_version: 10, opset_import: ["" : 18]>
agraph (float[N,5,4] x) => (float{shape} y)
<int64 first = {{0}}, int64[1] last = {{-1}}, int64[1] end = {{9223372036854775807}}, int64[1] one = {{1}},
 float half = {{0.5}}, float[4,6] w = {{{w}}}, float[6,4] v = {{{w}}},
 float[6] b = {{1, 2, 3, 4, 5, 6}}> {{ {lines} }}"""
WEIGHTS = ", ".join(str((7 * i % 11) - 5) for i in range(24))
LAYER = "m = MatMul(x, w) a = Add(m, b) g = Gelu(a)".replace("g = Gelu(a)", "e = Erf(a) g = Mul(e, half)")


def graph(lines: str, shape: str) -> str:
    return HEAD.format(lines=lines, shape=shape, w=WEIGHTS)


def rows(compiled: onnx.ModelProto) -> list[int]:
    """Dim 1 of what each product of matrices computes."""
    made = {node.output[0] for node in compiled.graph.node if node.op_type == "MatMul"}
    return [v.type.tensor_type.shape.dim[1].dim_value for v in compiled.graph.value_info if v.name in made]


@pytest.mark.parametrize(
    ("selection", "shape", "left"),
    [
        ("y = Gather <axis = 1> (z, first)", "[N,4]", ["Gather", "Squeeze"]),
        ("y = Gather <axis = -2> (z, last)", "[N,1,4]", ["Gather"]),
        ("y = Slice(z, last, end, one)", "[N,1,4]", ["Slice"]),
    ],
)
def test_one_token_through_a_layer(selection: str, shape: str, left: list[str]) -> None:
    text = graph(f"{LAYER} p = MatMul(g, v) z = Add(x, p) {selection}", shape)
    compiled = run_passes(text, PASS, "eliminate-common-subexpressions")
    assert rows(compiled) == [1, 1]
    assert sorted(set(ops(compiled)) & {"Gather", "Slice", "Squeeze"}) == left
    assert_same_numbers(model(text), compiled)


def test_in_every_setting() -> None:
    text = graph("m = MatMul(x, w) n = Relu(m) y = Gather <axis = 1> (n, first)", "[N,6]")
    assert_rewritten(text, ["Gather", "MatMul", "Relu", "Squeeze"], PASS)


def test_a_value_that_two_steps_read_is_selected_once() -> None:
    text = graph("m = MatMul(x, w) a = Add(m, b) e = Erf(a) g = Mul(e, a) y = Gather <axis = 1> (g, first)", "[N,6]")
    compiled = run_passes(text, PASS, "eliminate-common-subexpressions", "eliminate-dead-code")
    assert ops(compiled) == ["Gather", "MatMul", "Add", "Erf", "Mul", "Squeeze"]
    assert_same_numbers(model(text), compiled)


ATTENTION = """<ir_version: 10, opset_import: ["" : 18]>
agraph (float[N,5,6] x, float[6,6] q, float[6,6] k, float[6,6] v, float[N,1,1,5] mask) => (float[N,6] y)
<int64[4] heads = {0, 0, 2, 3}, int64[3] joined = {0, 0, 6}, int64 first = {0}, float[6] one = {1, 1, 1, 1, 1, 1}> {
  qm = MatMul(x, q) km = MatMul(x, k) vm = MatMul(x, v)
  qh = Reshape(qm, heads) kh = Reshape(km, heads) vh = Reshape(vm, heads)
  qt = Transpose <perm = [0,2,1,3]> (qh) kt = Transpose <perm = [0,2,3,1]> (kh) vt = Transpose <perm = [0,2,1,3]> (vh)
  s = MatMul(qt, kt) t = Add(s, mask) p = Softmax <axis = -1> (t) o = MatMul(p, vt)
  u = Transpose <perm = [0,2,1,3]> (o) r = Reshape(u, joined) z = Add(r, x)
  n = LayerNormalization <axis = -1> (z, one) y = Gather <axis = 1> (n, first) }"""


def test_attention_of_one_token() -> None:
    compiled = run_passes(ATTENTION, PASS, "eliminate-common-subexpressions", "eliminate-dead-code")
    (selected,) = [node for node in compiled.graph.node if node.op_type == "Gather"]
    assert selected.input[0] == "x"
    readers = [node.op_type for node in compiled.graph.node if selected.output[0] in node.input]
    assert sorted(readers) == ["Add", "MatMul"]
    assert_same_numbers(model(ATTENTION), compiled)


def test_a_guard_of_the_probabilities() -> None:
    """Where(IsNaN(p), 0, p), as exported for queries that see no key."""
    guarded = "nan = IsNaN(p) g = Where(nan, nothing, p) o = MatMul(g, vt)"
    text = ATTENTION.replace("o = MatMul(p, vt)", guarded).replace("int64 first", "float nothing = {0}, int64 first")
    compiled = run_passes(text, PASS, "eliminate-common-subexpressions", "eliminate-dead-code")
    (selected,) = [node for node in compiled.graph.node if node.op_type == "Gather"]
    assert selected.input[0] == "x"
    assert_same_numbers(model(text), compiled)


STEPS = """mean = ReduceMean <axes = [-1]> (m) d = Sub(m, mean) sq = Mul(d, d) var = ReduceMean <axes = [2]> (sq)
  sd = Sqrt(var) n = Div(d, sd)"""


@pytest.mark.parametrize(
    "norm", [STEPS, "n = LayerNormalization <axis = -1> (m, b)", "n = SimplifiedLayerNormalization <axis = 2> (m, b)"]
)
def test_norms_of_old_files(norm: str) -> None:
    text = graph(f"m = MatMul(x, w) {norm} y = Gather <axis = 1> (n, first)", "[N,6]")
    text = text.replace("ir_version: 10", "ir_version: 8").replace('"" : 18', '"" : 14')
    compiled = run_passes(text, PASS, "eliminate-common-subexpressions", "eliminate-dead-code")
    assert ops(compiled)[0] == "Gather" and ops(compiled).count("Gather") == 1
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize(
    ("lines", "shape"),
    [
        ("m = MatMul(x, w) y = Gather <axis = 2> (m, first)", "[N,5]"),  # a column
        ("m = MatMul(x, w) n = ReduceMean(m, one) y = Gather <axis = 1> (n, first)", "[N,6]"),
        ("m = Relu(x) y = Gather <axis = 1> (m, first)", "[N,4]"),  # no product
        ("m = MatMul(x, w) n = Softmax <axis = 1> (m) y = Gather <axis = 1> (n, first)", "[N,6]"),
        ("s = CumSum(x, first) m = MatMul(x, w) t = Tanh(m) y, i = TopK <axis = 1> (t, one)", "[N,1,6]"),
    ],
)
def test_what_needs_other_positions_stays(lines: str, shape: str) -> None:
    assert_stays(graph(lines, shape), PASS)


def test_a_product_that_others_read_stays() -> None:
    text = graph("m = MatMul(x, w) y = Gather <axis = 1> (m, first) z = Exp(m)", "[N,6]").replace(
        "y)\n", "y, float[N,5,6] z)\n"
    )
    assert_stays(text, PASS)


@pytest.mark.parametrize("shape", ["[5,4]", "[1,5,4]", "[5,1]", "[1,4]"])
def test_a_norm_whose_scale_has_rows_takes_the_selected_ones(shape: str) -> None:
    numbers = ", ".join(str(i + 1) for i in range(20 if "5,4" in shape else 5 if "5" in shape else 4))
    lines = "m = MatMul(x, w) q = MatMul(m, v) n = LayerNormalization(q, k) y = Gather <axis = 1> (n, last)"
    text = graph(lines, "[N,1,4]").replace("<int64 first", f"<float{shape} k = {{{numbers}}}, int64 first")
    compiled = run_passes(text, PASS, "fold-constants")
    assert ops(compiled)[0] == "Gather"
    assert_same_numbers(model(text), compiled)


def test_a_reshape_to_zeros_taken_as_they_are() -> None:
    text = """agraph (float[N,6,8] x, float[8,8] w) => (float[N,4,2] y)
        <int64 first = {0}, int64[1] zero = {0}, int64[3] rest = {6, 4, 2}>
        { s = Shape(x) n = Gather(s, zero) t = Concat <axis = 0> (n, rest) m = MatMul(x, w)
          r = Reshape <allowzero = 1> (m, t) y = Gather <axis = 1> (r, first) }"""
    compiled = run_passes(text)
    assert ops(compiled)[0] == "Gather"
    assert_same_numbers(model(text), compiled)
