"""eliminate-common-subexpressions merges what is equal and pure."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper
from support import assert_becomes, assert_same_numbers, model, ops, run_passes

PASS = "eliminate-common-subexpressions"


def test_equal_nodes_become_one() -> None:
    assert_becomes(
        "agraph (float[3] x) => (float[3] y) { a = Exp(x) b = Exp(x) c = Relu(a) d = Relu(b) y = Add(c, d) }",
        "agraph (float[3] x) => (float[3] y) { a = Exp(x) c = Relu(a) y = Add(c, c) }",
        PASS,
    )


def test_two_outputs_that_no_identity_can_copy_stay_two() -> None:
    """Identity takes sequences from opset 14 on, and never maps."""
    sequences = """<ir_version: 6, opset_import: ["" : 11]> agraph (float[n] x) => (seq(float[n]) y, seq(float[n]) z)
        { y = SequenceConstruct(x) z = SequenceConstruct(x) }"""
    assert ops(run_passes(sequences, PASS)) == ["SequenceConstruct"] * 2
    each = "ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(x)"
    header = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>'
    maps = model(f"{header} agraph (float[n,2] x) => (float y, float z) {{ y = {each} z = {each} }}")
    for output in maps.graph.output:
        output.ClearField("type")
    assert ops(run_passes(maps, PASS)) == ["ZipMap"] * 2


def test_attributes_inputs_and_outputs_count() -> None:
    for lines in (
        "a = LeakyRelu <alpha = 0.1> (x) b = LeakyRelu <alpha = 0.2> (x) y = Sub(a, b)",
        "a = Sub(x, z) b = Sub(z, x) y = Add(a, b)",
    ):
        text = f"agraph (float[3] x, float[3] z) => (float[3] y) {{ {lines} }}"
        assert len(ops(run_passes(text, PASS))) == 3


def test_an_axis_behind_the_last_is_not_the_first() -> None:
    lines = "y = Flatten <axis = 2> (x) z = Flatten <axis = 0> (x)"
    text = f"agraph (float[2,3] x) => (float[6,1] y, float[1,6] z) {{ {lines} }}"
    compiled = run_passes(text, PASS)
    assert ops(compiled) == ["Flatten", "Flatten"]
    assert_same_numbers(model(text), compiled)
    same = "agraph (float[2,3] x) => (float[2,3] y) { a = Flatten <axis = -1> (x) b = Flatten (x) y = Add(a, b) }"
    assert ops(run_passes(same, PASS)) == ["Flatten", "Add"]


def test_random_nodes_are_never_merged() -> None:
    text = """agraph () => (float[3] y) {
        a = RandomNormal <shape = [3], seed = 1.0> () b = RandomNormal <shape = [3], seed = 1.0> () y = Add(a, b) }"""
    assert ops(run_passes(text, PASS)) == ["RandomNormal", "RandomNormal", "Add"]


def test_two_graph_outputs_keep_their_names_but_are_computed_once() -> None:
    text = "agraph (float[3] x) => (float[3] y, float[3] z) { y = Exp(x) z = Exp(x) }"
    assert ops(run_passes(text, PASS)) == ["Exp", "Identity"]
    assert_becomes(
        "agraph (float[3] x) => (float[3] y, float[3] z) { a = Exp(x) y = Exp(x) z = Relu(a) }",
        "agraph (float[3] x) => (float[3] y, float[3] z) { y = Exp(x) z = Relu(y) }",
        PASS,
    )


def test_equal_initializers_become_one_but_not_overridable_ones() -> None:
    proto = model("agraph (float[3] x, float[3] p) => (float[3] y) { a = Add(x, u) b = Mul(a, v) y = Sub(b, p) }")
    for name in ("u", "v", "p"):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, "float32"), name))
    compiled = run_passes(proto, PASS)
    assert sorted(t.name for t in compiled.graph.initializer) == ["p", "u"]
    assert_same_numbers(proto, compiled)


IF = """agraph (bool c, float[3] x) => (float[3] y) {{
    {outer}
    y = If (c) <then_branch = t () => (float[3] p) {{ {then} }}, else_branch = e () => (float[3] q) {{ {other} }}> }}"""


def test_a_body_may_use_what_was_computed_before_it_but_not_its_sibling() -> None:
    compiled = run_passes(
        IF.format(outer="a = Exp(x) r = Relu(a)", then="b = Exp(x) p = Neg(b)", other="d = Cos(x) q = Neg(d)"),
        PASS,
    )
    then, _ = (attribute.g for attribute in compiled.graph.node[-1].attribute)
    assert [node.op_type for node in then.node] == ["Neg"] and then.node[0].input[0] == "a"
    siblings = IF.format(outer="", then="b = Exp(x) p = Neg(b)", other="d = Exp(x) q = Neg(d)")
    compiled = run_passes(siblings, PASS)
    assert [[n.op_type for n in a.g.node] for a in compiled.graph.node[-1].attribute] == [["Exp", "Neg"]] * 2
    assert_same_numbers(model(siblings), compiled)


def test_equal_constants_of_sibling_bodies_stay_apart() -> None:
    """A constant of one branch is not visible in the other."""
    constant = "k = Constant <value = float[3] {{1, 2, 3}}> () {} = Add(x, k)"
    text = IF.format(outer="", then=constant.format("p"), other=constant.format("q").replace("k", "l"))
    assert_same_numbers(model(text), run_passes(text, PASS))


def test_shape_arithmetic_is_equal_where_its_result_is() -> None:
    text = """agraph (float[n,m,8] x) => (float[n,m,8] y, int64 u, int64 v) {
        i = Constant <value = int64 {0}> () j = Constant <value = int64 {-2}> () k = Constant <value = int64 {1}> ()
        r = Relu(x) s = Shape(x) t = Shape(r) a = Gather(s, i) b = Gather(t, i) c = Add(a, b)
        d = Gather(t, j) e = Gather(s, k) u = Mul(c, d) v = Mul(c, e) y = Exp(r) }"""
    compiled = run_passes(text, PASS, "infer-shapes", "eliminate-dead-code")
    assert sorted(ops(compiled)) == sorted(["Relu", "Exp", "Shape", "Gather", "Gather", "Add", "Mul", "Identity"])
    assert_same_numbers(model(text), compiled)


def test_equal_names_of_dims_in_two_bodies_are_two_things() -> None:
    text = """agraph (bool p, float[n] x) => (int64 y) {
        i = Constant <value = int64 {0}> ()
        y = If (p) <then_branch = yes () => (int64 a) {
            z = NonZero(x) s = Shape(z) one = Constant <value = int64 {1}> () a = Gather(s, one) },
            else_branch = no () => (int64 b) { w = Compress(x, c) c2 = Shape(w) b = Gather(c2, i) }>
        c = Cast <to = 9> (x) }"""
    proto = model(text)
    cast = proto.graph.node.pop()
    proto.graph.node.insert(0, cast)
    assert_same_numbers(proto, run_passes(proto, PASS, "infer-shapes", "eliminate-dead-code"))


def test_what_died_with_its_reader_serves_nobody() -> None:
    text = """agraph (float[2,M] x) => (int64 y, int64[2] z) <int64 zero = {0}> {
        s = Shape(x) g = Gather(s, zero) a = NonZero(x) t = Shape(a) h = Gather(t, zero) y = Add(g, h)
        u = Shape(a) z = Neg(u) }"""
    compiled = run_passes(text, "eliminate-common-subexpressions")
    assert ops(compiled) == ["Shape", "Gather", "NonZero", "Add", "Shape", "Neg"]
    assert_same_numbers(model(text), compiled)


def test_of_two_nodes_that_stay_one_is_read() -> None:
    """Both have an output of the graph; what follows their other outputs is computed once."""
    text = """agraph (float[4,4] x) => (float[2,4] y, float[2,4] z, float[2,4] w) <int64[2] cut = {2, 2}> {
      a, y = Split(x, cut) b, z = Split(x, cut) c = Exp(a) d = Exp(b) w = Add(c, d) }"""
    compiled = run_passes(text, "eliminate-common-subexpressions")
    assert ops(compiled) == ["Split", "Split", "Exp", "Add"]
    assert_same_numbers(model(text), compiled)
    again = run_passes(compiled, "eliminate-common-subexpressions")
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)
