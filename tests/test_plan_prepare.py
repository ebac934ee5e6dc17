"""What can be planned: shapes get fixed, branches and loops straight, and the rest is a named error."""

from __future__ import annotations

import numpy as np
import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.planner import Plan, lay_out
from pfvm.compiler.plan.prepare import prepare
from pfvm.errors import InputError, OptionError, UnsupportedOpError
from pfvm.runtime.ort import OrtExecutable, evaluate
from support import model

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '

LOOP = """(float[4] x) => (float[4] y, float[3,4] rows) <int64 count = {3}, bool go = {1}> {
  y, rows = Loop(count, go, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w, float[4] r) {
    d = Identity(c) f = Cast<to = 1>(i) w = Add(v, f) r = Mul(w, x)
  }>
}"""
SCAN = """(float[4] x, float[5,4] xs) => (float[4] y, float[5,4] rows) {
  y, rows = Scan<num_scan_inputs = 1, scan_input_directions = [1],
    body = b (float[4] v, float[4] u) => (float[4] w, float[4] r) { w = Add(v, u) r = Mul(w, u) }>(x, xs)
}"""
BRANCH = """(float[4] x) => (float[4] y) <bool c = {0}> {
  y = If(c) <then_branch = t () => (float[4] a) { a = Neg(x) }, else_branch = e () => (float[4] b) { b = Exp(x) }>
}"""


def planned(text: str, **options: object) -> Plan:
    return lay_out(read_model(model(HEAD + text)), options, evaluate)


@pytest.mark.parametrize("text", [LOOP, SCAN, BRANCH], ids=["Loop", "Scan", "If"])
def test_what_is_known_is_made_straight_and_means_the_same(text: str) -> None:
    source = read_model(model(HEAD + text))
    straight = prepare(source, {}, evaluate)
    assert not {"Loop", "Scan", "If"} & {node.op_type for node in straight.graph}
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(tuple(v.shape)).astype(np.float32) for v in source.graph.inputs}  # type: ignore[arg-type, union-attr]
    expected, found = OrtExecutable(source)(feeds), OrtExecutable(straight)(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_a_loop_beyond_the_limit_is_an_error() -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"3 iterations of 4 nodes are more than --unroll-limit 5 \(unroll_limit=5 in Python"
    ):
        planned(LOOP, unroll_limit=5)


def test_a_branch_that_depends_on_an_input_says_on_which() -> None:
    text = BRANCH.replace("(float[4] x)", "(float[4] x, bool c)").replace("<bool c = {0}>", "")
    with pytest.raises(UnsupportedOpError, match="a plan has no branches, and its condition 'c'"):
        planned(text)


def test_open_shapes_have_to_be_given_and_to_fit() -> None:
    text = "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
    with pytest.raises(
        InputError, match=r"needs fixed shapes; give it one, as with --shape x=1,4 \(shapes=\{\"x\": \[1,4\]\} in"
    ):
        planned(text)
    assert planned(text, shapes={"x": (3, 4)}).model.graph.outputs[0].shape == [3, 4]
    with pytest.raises(InputError, match=r"the shape \[3, 5\] that is given for 'x' does not fit the model's \[N,4\]"):
        planned(text, shapes={"x": (3, 5)})
    with pytest.raises(InputError, match="the model has no input 'z'"):
        planned(text, shapes={"z": (3, 4)})


def test_shape_arithmetic_is_folded_once_shapes_are_fixed() -> None:
    text = """(float[N,4,8] x) => (float[N,M] y) <int64[1] minus = {-1}, int64[1] zero = {0}> {
      s = Shape(x) n = Gather(s, zero) t = Concat<axis = 0>(n, minus) y = Reshape(x, t) }"""
    plan = planned(text, shapes={"x": (3, 4, 8)})
    assert "Reshape" in (ops := {node.op_type for node in plan.model.graph})
    assert not ops & {"Shape", "Gather", "Concat"}


@pytest.mark.parametrize("again", ["Identity(w)", "Reshape(w, same)", "Transpose(w)"])
def test_nodes_of_constants_alone_are_constants(again: str) -> None:
    """As PyTorch's exporter writes a weight of two names; what is inside the program has no place to be seen again."""
    weights = "<float[1] w = {2}, int64[1] same = {-1}>"
    plan = planned(f"(float[8] x) => (float[8] y) {weights} {{ v = {again} y = Mul(x, v) }}")
    assert [node.op_type for node in plan.model.graph if node.op_type in ("Identity", "Reshape", "Transpose")] == []


def test_a_shape_that_depends_on_values_is_an_error() -> None:
    with pytest.raises(UnsupportedOpError, match=r"NonZero.* has no fixed shape"):
        planned("(float[4] x) => (int64[1,N] y) { y = NonZero(x) }")


def test_random_numbers_are_an_error() -> None:
    with pytest.raises(UnsupportedOpError, match=r"RandomNormal.*deterministic"):
        planned("() => (float[4] y) { y = RandomNormal<shape = [4]>() }")


def test_unknown_options_are_errors() -> None:
    with pytest.raises(OptionError, match="no option machin; did you mean 'machine'"):
        planned(LOOP, machin="x")


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_of_old_opsets_flattens_the_axes_behind_its_own(axis: int) -> None:
    head = '<ir_version: 7, opset_import: ["" : 11]> g '
    source = read_model(model(head + f"(float[2,3,4] x) => (float[2,3,4] y) {{ y = Softmax<axis = {axis}>(x) }}"))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    prepared = prepare(source, {})
    np.testing.assert_allclose(OrtExecutable(prepared)(feeds)["y"], OrtExecutable(source)(feeds)["y"], rtol=1e-6)
    (softmax,) = [node for node in prepared.graph if node.op_type == "Softmax"]
    assert softmax.attributes["axis"].as_int() == len(softmax.inputs[0].shape) - 1  # type: ignore[arg-type, union-attr]


def test_a_batch_normalization_that_trains_runs_gathered() -> None:
    text = """<ir_version: 8, opset_import: ["" : 15]>
    g (float[2,3,8] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,8] y, float[3] m1, float[3] v1)
    { y, m1, v1 = BatchNormalization<training_mode = 1>(x, s, b, m, v) }"""
    plan = lay_out(read_model(model(text)))
    assert [node.metadata_props.get("pfvm.gathered") for node in plan.model.graph] == ["1"]


def test_strings_and_sequences_have_no_place() -> None:
    with pytest.raises(UnsupportedOpError, match="'x' is STRING: a plan has places for tensors of numbers"):
        planned("(string[2] x) => (string[2] y) { y = Identity(x) }")
    with pytest.raises(UnsupportedOpError, match=r"'s' is Sequence.*: a plan has places for tensors of numbers"):
        planned("(float[2] x) => (float[4] y) { s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0>(s) }")
