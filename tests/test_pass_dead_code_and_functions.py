"""eliminate-dead-code drops what cannot be observed; inline-functions dissolves one-node functions."""

from __future__ import annotations

from support import assert_becomes, assert_same_numbers, model, ops, run_passes

DEAD, INLINE = "eliminate-dead-code", "inline-functions"


def test_dead_nodes_initializers_and_functions_go() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        agraph (float[3] x) => (float[3] y) {
            a = Exp(x) b = my.F(a) k = Constant <value_float = 1.0> () c = Add(a, k) y = Relu(x) }
        <domain: "my", opset_import: ["" : 17]> F (a) => (b) { c = Exp(a) b = Neg(c) }"""
    compiled = run_passes(text, DEAD)
    assert ops(compiled) == ["Relu"] and not compiled.graph.initializer and not compiled.functions


def test_imports_of_which_nothing_is_used_go() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3, "mine" : 1, "inner" : 2]>
        agraph (bool c, float[3] x) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] p) { p = inner.Op(x) },
                        else_branch = e () => (float[3] q) { q = Neg(x) }> }"""
    compiled = run_passes(text, DEAD)
    assert {each.domain: each.version for each in compiled.opset_import} == {"": 17, "inner": 2}


def test_unused_inputs_stay() -> None:
    compiled = run_passes("agraph (float[3] x, float[3] unused) => (float[3] y) { y = Relu(x) }")
    assert [v.name for v in compiled.graph.input] == ["x", "unused"]


def test_an_unknown_domain_is_kept_even_when_unread() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "theirs" : 1]>
        agraph (float[3] x) => (float[3] y) { a = theirs.Log(x) b = theirs.Log(x) y = Relu(x) }"""
    assert ops(run_passes(text)) == ["Log", "Log", "Relu"]


def test_a_value_captured_by_a_body_is_read() -> None:
    text = """agraph (bool c, float[3] x) => (float[3] y) {
        a = Exp(x) b = Sin(x)
        y = If (c) <then_branch = t () => (float[3] p) { p = Neg(a) },
                    else_branch = e () => (float[3] q) { d = Cos(b) q = Neg(x) }> }"""
    compiled = run_passes(text, DEAD)
    assert ops(compiled) == ["Exp", "If"]
    assert_same_numbers(model(text), compiled)


CALL = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
agraph (float[3] x) => (float[3] y) {{ a = Exp(x) y = my.F <k = 0.3> (a) }}
<domain: "my", opset_import: ["" : {opset}]> F <k> (p) => (q) {{ {body} }}"""


def test_a_one_node_function_is_inlined_with_its_attributes() -> None:
    assert_becomes(
        CALL.format(opset=17, body="q = LeakyRelu <alpha : float = @k> (p)"),
        "agraph (float[3] x) => (float[3] y) { a = Exp(x) y = LeakyRelu <alpha = 0.3> (a) }",
        INLINE,
        DEAD,
    )


def test_a_function_of_several_nodes_or_of_another_meaning_stays() -> None:
    compiled = run_passes(CALL.format(opset=17, body="r = LeakyRelu <alpha : float = @k> (p) q = Neg(r)"), INLINE)
    assert ops(compiled) == ["Exp", "F"]
    compiled = run_passes(
        CALL.format(opset=11, body="q = Softmax(p)").replace("<k = 0.3>", "").replace("<k>", ""), INLINE
    )
    assert ops(compiled) == ["Exp", "F"]  # Softmax has another meaning from opset 13 on


def test_a_call_in_a_body_is_inlined() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        agraph (bool c, float[3] x) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] p) { p = my.F(x) },
                        else_branch = e () => (float[3] q) { q = my.F(x) }> }
        <domain: "my", opset_import: ["" : 17]> F (p) => (q) { q = Neg(p) }"""
    compiled = run_passes(text, INLINE, DEAD)
    assert [a.g.node[0].op_type for a in compiled.graph.node[0].attribute] == ["Neg", "Neg"] and not compiled.functions
    assert_same_numbers(model(text), compiled)


def test_what_is_learnt_of_a_parameter_is_not_written() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "my" : 1]> agraph (bool a, bool b) => (bool y) { y = my.F(a, b) }
        <domain: "my", opset_import: ["" : 17]>
        F (p, q) => (r) { no = Constant <value = bool {0}> () s = Not(p) t = Xor(q, no) r = Xor(s, t) }"""
    compiled = run_passes(text)
    assert [node.op_type for node in compiled.functions[0].node] == ["Not", "Xor"]
    assert run_passes(compiled).SerializeToString() == compiled.SerializeToString()


def test_a_sequence_in_a_function_is_of_no_known_type() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "my" : 1]> agraph (float[2] a, float[2] b) => (float[2] y) {
            y = my.F(a, b) }
        <domain: "my", opset_import: ["" : 17]>
        F (p, q) => (r) { k = Constant <value = int64 {0}> () s = SequenceConstruct(p, q) r = SequenceAt(s, k) }"""
    assert_same_numbers(model(text), run_passes(text))
