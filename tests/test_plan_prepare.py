"""What can be planned: shapes get fixed, branches and loops straight, and the rest is a named error."""

from __future__ import annotations

import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.planner import Plan, lay_out
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
    import numpy as np
    from pfvm.compiler.plan.prepare import prepare

    source = read_model(model(HEAD + text))
    straight = prepare(source, {}, evaluate)
    assert not {"Loop", "Scan", "If"} & {node.op_type for node in straight.graph}
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(tuple(v.shape)).astype(np.float32) for v in source.graph.inputs}  # type: ignore[arg-type, union-attr]
    expected, found = OrtExecutable(source)(feeds), OrtExecutable(straight)(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_a_loop_beyond_the_limit_is_an_error() -> None:
    with pytest.raises(UnsupportedOpError, match="3 iterations of 4 nodes are more than --unroll-limit=5"):
        planned(LOOP, unroll_limit=5)


def test_a_branch_that_depends_on_an_input_says_on_which() -> None:
    text = BRANCH.replace("(float[4] x)", "(float[4] x, bool c)").replace("<bool c = {0}>", "")
    with pytest.raises(UnsupportedOpError, match="a plan has no branches, and its condition 'c'"):
        planned(text)


def test_open_shapes_have_to_be_given_and_to_fit() -> None:
    text = "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
    with pytest.raises(InputError, match="needs fixed shapes; give it one with --shape x="):
        planned(text)
    assert planned(text, shapes={"x": (3, 4)}).model.graph.outputs[0].shape == [3, 4]
    with pytest.raises(InputError, match="--shape x=3,5: the model says"):
        planned(text, shapes={"x": (3, 5)})
    with pytest.raises(InputError, match="the model has no such input"):
        planned(text, shapes={"z": (3, 4)})


def test_shape_arithmetic_is_folded_once_shapes_are_fixed() -> None:
    text = """(float[N,4,8] x) => (float[N,M] y) <int64[1] minus = {-1}, int64[1] zero = {0}> {
      s = Shape(x) n = Gather(s, zero) t = Concat<axis = 0>(n, minus) y = Reshape(x, t) }"""
    plan = planned(text, shapes={"x": (3, 4, 8)})
    assert "Reshape" in (ops := {node.op_type for node in plan.model.graph})
    assert not ops & {"Shape", "Gather", "Concat"}


def test_a_shape_that_depends_on_values_is_an_error() -> None:
    with pytest.raises(UnsupportedOpError, match=r"NonZero.* has no fixed shape"):
        planned("(float[4] x) => (int64[1,N] y) { y = NonZero(x) }")


def test_random_numbers_are_an_error() -> None:
    with pytest.raises(UnsupportedOpError, match=r"RandomNormal.*deterministic"):
        planned("() => (float[4] y) { y = RandomNormal<shape = [4]>() }")


def test_unknown_options_are_errors() -> None:
    with pytest.raises(OptionError, match="no option --machin; did you mean '--machine'"):
        planned(LOOP, machin="x")
