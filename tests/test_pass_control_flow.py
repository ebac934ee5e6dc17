"""Promise: constant and equal branches, short loops, and what loops carry or compute in vain are simplified."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support import assert_same_numbers, assert_stays, model, ops, run_passes

IF = """agraph (bool c, float[3] x) => (float[3] y) {{
    y = If ({condition}) <then_branch = t () => (float[3] p) {{ {then} }},
                          else_branch = e () => (float[3] q) {{ {other} }}> }}"""


def loop(body: str, outputs: str = "y", carried: str = "x", formals: str = "a", results: str = "b", n: int = 3) -> str:
    """A Loop whose count n is an initializer; the body has i, c, the formals, k = [1, 2, 3]; w comes from outside."""

    def typed(names: str) -> str:
        return ", ".join(f"float[3] {name}" for name in names.split())

    outs = ", ".join(outputs.split())
    shapes = ", ".join(f"float[{'m,' if name.startswith('s') else ''}3] {name}" for name in outputs.split())
    return f"""agraph (float[3] x, float[3] w) => ({shapes}) <int64 n = {{{n}}}, bool t = {{1}}> {{
        {outs} = Loop (n, t, {", ".join(carried.split())})
        <body = g (int64 i, bool c, {typed(formals)}) => (bool d, {typed(results)}) {{ d = Identity(c) {body} }}> }}"""


def check(text: str, expected: list[str], *passes: str) -> onnx.ModelProto:
    """The passes leave these operators, and the numbers."""
    compiled = run_passes(text, *passes)
    onnx.checker.check_model(compiled, full_check=True)
    assert ops(compiled) == expected
    assert_same_numbers(model(text), compiled)
    return compiled


def inner(compiled: onnx.ModelProto) -> list[str]:
    (node,) = (node for node in compiled.graph.node if node.op_type in ("Loop", "Scan", "If"))
    return [n.op_type for a in node.attribute if a.HasField("g") for n in a.g.node]


@pytest.mark.parametrize(("truth", "left"), [(1, "Exp"), (0, "Neg")])
def test_a_constant_condition_leaves_one_branch(truth: int, left: str) -> None:
    text = IF.format(condition="k", then="p = Exp(x)", other="q = Neg(x)")
    text = text.replace("{\n", f"<bool k = {{{truth}}}> {{\n", 1)
    check(text, [left], "simplify-if")


def test_equal_branches_become_one_and_different_or_random_ones_stay() -> None:
    same = IF.format(condition="c", then="u = Exp(x) p = Add(u, x)", other="v = Exp(x) q = Add(v, x)")
    check(same, ["Exp", "Add"], "simplify-if")
    assert_stays(
        IF.format(condition="c", then="u = Exp(x) p = Sub(u, x)", other="v = Exp(x) q = Sub(x, v)"), "simplify-if"
    )
    draws = "r = RandomNormalLike <seed = 1.0> (x) {} = Add(r, x)"
    text = IF.format(
        condition="c", then=draws.format("p"), other=draws.replace("r ", "s ").replace("(r", "(s").format("q")
    )
    assert ops(run_passes(text, "simplify-if")) == ["If"]


def test_what_nobody_reads_of_an_if_is_not_computed() -> None:
    text = """agraph (bool c, float[3] x) => (float[3] y) {
        u, y, w = If (c) <then_branch = t () => (float[3] o, float[3] p, float[3] q) {
                              o = Exp(x) p = Abs(x) q = Neg(p) },
                          else_branch = e () => (float[3] r, float[3] s, float[3] z) {
                              r = Sin(x) s = Cos(r) z = Tan(x) }> }"""
    compiled = check(text, ["If"], "simplify-if", "eliminate-dead-code")
    branches = [[n.op_type for n in a.g.node] for a in compiled.graph.node[0].attribute]
    assert sorted(branches) == [["Abs"], ["Sin", "Cos"]]


def test_a_branch_that_hands_on_an_input_to_two_graph_outputs() -> None:
    text = """agraph (float[3] x) => (float[3] y, float[3] z) <bool k = {1}> {
        y, z = If (k) <then_branch = t () => (float[3] p, float[3] o) { p = Identity(x) o = Identity(x) },
                       else_branch = e () => (float[3] q, float[3] r) { q = Neg(x) r = Exp(x) }> }"""
    check(text, ["Identity", "Identity"], "simplify-if")


def test_equal_ifs_are_one() -> None:
    one = """{0} = If (c) <then_branch = t{0} () => (float[3] p{0}) {{ p{0} = Exp(x) }},
                         else_branch = e{0} () => (float[3] q{0}) {{ q{0} = Neg(x) }}>"""
    text = f"agraph (bool c, float[3] x) => (float[3] y) {{ {one.format('a')} {one.format('b')} y = Add(a, b) }}"
    check(text, ["If", "Add"], "eliminate-common-subexpressions")
    other = text.replace("qb = Neg", "qb = Abs")
    assert ops(run_passes(other, "eliminate-common-subexpressions")) == ["If", "If", "Add"]


def test_a_short_loop_is_unrolled_and_a_long_one_is_not() -> None:
    body = "b = Mul(a, w) s = Add(a, w)"
    text = loop(body, outputs="y s2", results="b s")
    check(text, ["Identity", "Mul", "Add", "Unsqueeze"] * 3 + ["Concat"], "unroll-loops")
    check(loop(body, outputs="y s2", results="b s", n=1), ["Identity", "Mul", "Add", "Unsqueeze"], "unroll-loops")
    assert ops(run_passes(loop(body, outputs="y s2", results="b s", n=30), "unroll-loops")) == ["Loop"]
    check(loop("b = Mul(a, w)", n=0), ["Identity"], "unroll-loops")
    check(loop("b = Mul(a, w)", n=30), ["Mul"] * 30, "unroll-loops{max_nodes=100}", "eliminate-dead-code")


def test_a_loop_that_never_runs_collects_nothing() -> None:
    text = loop("b = Mul(a, w) s = Neg(w)", outputs="y s2", results="b s", n=0).replace(
        "float[m,3] s2", "float[0,3] s2"
    )
    assert "Loop" not in ops(run_passes(text, "unroll-loops"))


SCAN = """agraph (float[3] x, float[{n},3] xs) => (float[3] y, float[{n},3] t) {{
    y, t = Scan <num_scan_inputs = 1{more}, body = g (float[3] a, float[3] e) => (float[3] b, float[3] p) {{
        b = Mul(a, e) p = Exp(b) }}> (x, xs) }}"""


def test_a_short_scan_is_unrolled() -> None:
    one = ["Gather", "Mul", "Exp", "Unsqueeze"]
    check(SCAN.format(n=3, more=""), [*one * 3, "Concat"], "unroll-loops")
    check(SCAN.format(n=1, more=""), one, "unroll-loops")
    for n, more in ((40, ""), ("N", ""), (3, ", scan_input_directions = [1]"), (3, ", scan_output_directions = [1]")):
        assert ops(run_passes(SCAN.format(n=n, more=more), "unroll-loops")) == ["Scan"]


def test_a_loop_that_may_stop_early_or_draws_numbers_stays() -> None:
    stops = loop("b = Mul(a, w)").replace(
        "d = Identity(c)", "z = ReduceSum <keepdims = 0> (a) o = CastLike(i, z) d = Less(z, o)"
    )
    assert ops(run_passes(stops, "unroll-loops")) == ["Loop"]
    draws = loop("r = RandomNormalLike <seed = 1.0> (a) b = Add(a, r)")
    assert ops(run_passes(draws, "unroll-loops", "hoist-loop-invariants")) == ["Loop"]


def test_what_does_not_change_is_not_carried_and_what_nobody_reads_neither() -> None:
    text = loop("b = Mul(a, f) g2 = Identity(f) h = Exp(e)", "y z", "x w", "a f", "b g2", n=40)
    text = text.replace("h = Exp(e)", "")
    assert inner(check(text, ["Identity", "Loop"], "simplify-carried")) == ["Identity", "Mul"]
    text = loop("b = Mul(a, w) g2 = Exp(f) q = Neg(a)", "y z s", "x w", "a f", "b g2 q", n=40)
    text = text.replace("(float[3] y, float[3] z, float[m,3] s)", "(float[3] y)")
    compiled = check(text, ["Loop"], "simplify-carried")
    assert inner(compiled) == ["Identity", "Mul"] and len(compiled.graph.node[0].output) == 1


def test_a_value_read_by_a_live_one_stays_carried() -> None:
    text = loop("b = Mul(a, f) g2 = Neg(f)", "y z", "x w", "a f", "b g2", n=40)
    text = text.replace("(float[3] y, float[3] z)", "(float[3] y)")
    assert inner(check(text, ["Loop"], "simplify-carried")) == ["Identity", "Mul", "Neg"]


def test_a_scan_gives_up_outputs_and_carried_values() -> None:
    text = """agraph (float[3] x, float[3] w, float[5,3] xs) => (float[3] y, float[5,3] t) {
        y, z, s, t = Scan <num_scan_inputs = 1, scan_output_axes = [0, 0], scan_output_directions = [0, 1],
          body = g (float[3] a, float[3] f, float[3] e) => (float[3] b, float[3] f2, float[3] p, float[3] q) {
            m = Mul(a, f) b = Add(m, e) f2 = Identity(f) p = Exp(a) q = Neg(e) }> (x, w, xs) }"""
    compiled = check(text, ["Scan"], "simplify-carried")
    assert inner(compiled) == ["Mul", "Add", "Neg"] and len(compiled.graph.node[0].output) == 2


def test_invariants_leave_the_loop_and_what_might_fail_does_not_when_it_may_not_run() -> None:
    text = loop("u = Exp(w) v = Div(u, w) b = Mul(a, v)", n=40)
    assert inner(check(text, ["Exp", "Div", "Loop"], "hoist-loop-invariants")) == ["Identity", "Mul"]
    perhaps = text.replace("<int64 n = {40}, bool t = {1}>", "<bool t = {1}>").replace(
        "float[3] w)", "float[3] w, int64 n)", 1
    )
    assert inner(check(perhaps, ["Exp", "Loop"], "hoist-loop-invariants")) == ["Identity", "Div", "Mul"]


def test_everything_together_and_in_a_function() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        agraph (float[3] x) => (float[3] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 17]> F (a) => (r) {
            n = Constant <value = int64 {2}> () t = Constant <value = bool {1}> ()
            r = Loop (n, t, a) <body = g (int64 i, bool c, float[3] v) => (bool d, float[3] b) {
                d = Identity(c)
                b = If (t) <then_branch = h () => (float[3] p) { k = Constant <value = float[1] {2}> () p = Mul(v, k) },
                            else_branch = e () => (float[3] q) { q = Neg(v) }> }> }"""
    compiled = run_passes(text)
    assert_same_numbers(model(text), compiled)
    found = {node.op_type for graph in [compiled.graph, *compiled.functions] for node in graph.node}
    assert not found & {"If", "Loop"}


def test_a_body_s_own_constants_come_along() -> None:
    proto = model(IF.format(condition="k", then="p = Mul(x, u)", other="q = Neg(x)"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "k"))
    then = proto.graph.node[0].attribute[0].g
    then.initializer.append(numpy_helper.from_array(np.float32([1, 2, 3]), "u"))
    compiled = run_passes(proto, "simplify-if")
    assert ops(compiled) == ["Mul"]
    assert_same_numbers(proto, compiled)


def test_a_constant_of_a_branch_in_an_old_file_is_an_initializer_once_it_is_outside() -> None:
    text = """<ir_version: 3, opset_import: ["" : 11]> agraph (float[2] x) => (float[2] y) {
        c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = g () => (float[2] p) { k = Constant <value = float[2] {1.0, 2.0}> () p = Sub(x, k) },
                    else_branch = g () => (float[2] q) { q = Neg(x) }> }"""
    compiled = run_passes(text)
    assert ops(compiled) == ["Sub"]
    assert_same_numbers(model(text), compiled)
    assert run_passes(compiled) == compiled


OTHERS = """<ir_version: 8, opset_import: ["" : 17, "other" : 1]> agraph (float[2] x, int64[2] k) => (float[2] y) {
    c = Constant <value = bool {1}> ()
    y = If (c) <then_branch = t () => (float[2] p) {
                    p = other.Run <body = g (float[2,3] input_ids) => (float[2,3] out) {
                        r = Neg(input_ids) out = Reshape(r, k) }> (x) },
                else_branch = e () => (float[2] q) { q = Neg(x) }> }"""


def test_an_operator_of_another_domain_finds_the_names_and_the_shapes_that_its_body_declares() -> None:
    proto = model(OTHERS)
    proto.graph.initializer.append(
        numpy_helper.from_array(np.array([2, 3]), "k")
    )  # overridable: the shape is not known
    (run,) = run_passes(proto).graph.node
    before = proto.graph.node[1].attribute[0].g.node[0].attribute[0].g
    assert run.attribute[0].g.input == before.input and run.attribute[0].g.output == before.output
