"""fold-constants computes what does not depend on the inputs, and never makes the model bigger."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from support import assert_becomes, assert_same_numbers, assert_stays, model, ops, run_passes

PASS = "fold-constants"


def _initializers(proto: onnx.ModelProto) -> dict[str, list]:
    return {t.name: numpy_helper.to_array(t).tolist() for t in proto.graph.initializer}


def test_floats_are_folded_by_the_evaluator() -> None:
    compiled = run_passes(
        """agraph (float[3] x) => (float[3] y) {
            a = Constant <value = float[3] {1, 2, 3}> () b = Exp(a) c = Add(b, a) y = Mul(x, c) }""",
        PASS,
        "eliminate-dead-code",
    )
    assert ops(compiled) == ["Mul"] and len(compiled.graph.initializer) == 1


def test_without_an_evaluator_floats_stay_and_integers_go() -> None:
    from pfvm.compiler.driver import compile_model
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.options import Options

    text = """agraph (float[3] x) => (float[3] y, int64[2] z) {
        a = Constant <value = float[3] {1, 2, 3}> () b = Exp(a) y = Mul(x, b)
        i = Constant <value_ints = [1, 2]> () j = Add(i, i) z = Mul(j, j) }"""
    compiled = compile_model(read_model(model(text)), Options()).model
    assert [node.op_type for node in compiled.graph] == ["Exp", "Mul"]


def test_shape_arithmetic_of_static_shapes() -> None:
    text = """agraph (float[2,3,4] x) => (float[6,4] y) {
        s = Shape(x) z = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> ()
        a = Gather(s, z) b = Gather(s, o) c = Mul(a, b) m = Constant <value_ints = [-1]> ()
        t = Concat <axis = 0> (c, m) y = Reshape(x, t) }"""
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert ops(compiled) == ["Reshape"]
    assert [6, -1] in _initializers(compiled).values()
    assert_same_numbers(model(text), compiled)


def test_computed_reshape_target_with_a_symbolic_batch() -> None:
    text = """agraph (float[N,2,3] x) => (float[N,6] y) {
        s = Shape(x) z = Constant <value_ints = [0]> () n = Gather(s, z) six = Constant <value_ints = [6]> ()
        t = Concat <axis = 0> (n, six) y = Reshape(x, t) }"""
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert ops(compiled) == ["Reshape"]
    assert list(_initializers(compiled).values()) == [[0, 6]]
    assert_same_numbers(model(text), compiled)


def test_a_computed_reshape_target_that_leaves_a_dim_open_itself() -> None:
    """x.view(x.size(0), -1), as exporters write it: the dim that is copied from its place may stand beside the −1."""
    text = """agraph (float[N,{k},M] x) => (float[N,o] y) {{
        s = Shape(x) z = Constant <value_ints = [{at}]> () n = Gather(s, z) open = Constant <value_ints = [-1]> ()
        t = Concat <axis = 0> (n, open) y = Reshape(x, t) }}"""
    flat = text.format(k=2, at=0)
    compiled = run_passes(flat, PASS, "eliminate-dead-code")
    assert ops(compiled) == ["Reshape"] and list(_initializers(compiled).values()) == [[0, -1]]
    assert_same_numbers(model(flat), compiled)
    elsewhere = run_passes(text.format(k="K", at=2), PASS, "eliminate-dead-code")
    assert ops(elsewhere) == ["Shape", "Gather", "Concat", "Reshape"]


def test_the_last_dim_of_a_shape_is_known_where_it_is_counted_from_the_end() -> None:
    text = """agraph (float[n,m,8] x) => (float[?,?] y, int64[?] z) {
        s = Shape(x) o = Constant <value_ints = [-1]> () e = Constant <value_ints = [9223372036854775807]> ()
        l = Slice(s, o, e) t = Concat<axis=0>(o, l) y = Reshape(x, t)
        f = Constant <value_ints = [-2]> () z = Slice(s, f, e) }"""
    compiled = run_passes(text, PASS, "infer-shapes", "eliminate-dead-code")
    assert sorted(ops(compiled)) == ["Reshape", "Shape", "Slice"]
    assert [-1, 8] in _initializers(compiled).values()
    assert_same_numbers(model(text), compiled)


def test_a_symbolic_dim_elsewhere_becomes_minus_one_and_two_of_them_stay() -> None:
    swap = """agraph (float[{dims}] x) => (float[a,b] y) {{
        t = Transpose <perm = [1, 0]> (x) s = Shape(t) {} y = Reshape(x, {}) }}"""
    one = run_passes(swap.format("", "s", dims="N,3"), PASS)
    assert list(_initializers(one).values()) == [[3, -1]]
    two = run_passes(swap.format("", "s", dims="N,M"), PASS)
    assert ops(two) == ["Transpose", "Shape", "Reshape"]


def test_the_model_does_not_grow() -> None:
    text = """agraph (float[1] x) => (float[1000,1000] y) {
        s = Constant <value_ints = [1000, 1000]> () z = ConstantOfShape(s) y = Add(x, z) }"""
    assert ops(run_passes(text, PASS)) == ["ConstantOfShape", "Add"]


def test_a_transposed_weight_is_free_when_nobody_else_reads_it() -> None:
    weight = numpy_helper.from_array(np.ones((64, 32), np.float32), "w")
    once = model("agraph (float[2,64] x) => (float[2,32] y) { t = Transpose(w) u = Transpose(t) y = MatMul(x, u) }")
    once.graph.initializer.append(weight)
    assert ops(run_passes(once, PASS)) == ["MatMul"]
    twice = model(
        """agraph (float[2,64] x, float[2,32] v) => (float[2,32] y, float[2,64] z) {
        t = Transpose(w) y = MatMul(x, w) z = MatMul(v, t) }"""
    )
    twice.graph.initializer.append(weight)
    assert ops(run_passes(twice, PASS)) == ["Transpose", "MatMul", "MatMul"]


def test_a_transposed_scalar_is_a_scalar() -> None:
    compiled = run_passes("agraph () => (float y) { c = Constant <value = float {2}> () y = Transpose(c) }", PASS)
    assert _initializers(compiled)["y"] == 2


def test_a_weight_that_is_cut_and_put_together_again_is_free() -> None:
    """As an LSTM's gates, which PyTorch and ONNX order differently; unless a part of it has another reader."""
    text = """agraph (float[2,64] x) => (float[2,96] y, float[2,32] z)
        <int64[3] parts = {32,32,32}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] most = {999}> {
        a = Slice(w, zero, i, one) b = Slice(w, i, j, one) c = Slice(w, j, most, one)
        joined = Concat<axis = 1>(c, a, b) y = MatMul(x, joined) z = MatMul(x, OTHER) }"""
    weights = [
        numpy_helper.from_array(np.arange(64 * 96, dtype=np.float32).reshape(64, 96), "w"),
        numpy_helper.from_array(np.ones((64, 32), np.float32), "v"),
        *(numpy_helper.from_array(np.array([n]), name) for name, n in (("i", 32), ("j", 64))),
    ]
    for other, expected in (("v", ["MatMul", "MatMul"]), ("b", ["Slice"] * 3 + ["Concat", "MatMul", "MatMul"])):
        gates = model(text.replace("OTHER", other))
        gates.graph.initializer.extend(weights)
        assert ops(run_passes(gates, PASS)) == expected


def test_random_nodes_and_quantized_weights_stay() -> None:
    assert_ops = [
        ("r = RandomNormal <shape = [3], seed = 1.0> () y = Add(x, r)", ["RandomNormal", "Add"]),
        (
            "q = Constant <value = uint8[3] {1, 2, 3}> () s = Constant <value_float = 0.5> () "
            "w = DequantizeLinear(q, s) y = Add(x, w)",
            ["DequantizeLinear", "Add"],
        ),
    ]
    for lines, expected in assert_ops:
        assert ops(run_passes(f"agraph (float[3] x) => (float[3] y) {{ {lines} }}", PASS)) == expected


def test_an_overridable_initializer_is_no_constant() -> None:
    proto = model("agraph (float[3] x, float[3] w) => (float[3] y) { a = Exp(w) y = Add(x, a) }")
    proto.graph.initializer.append(numpy_helper.from_array(__import__("numpy").ones(3, "float32"), "w"))
    compiled = run_passes(proto)
    assert ops(compiled) == ["Exp", "Add"]
    assert [v.name for v in compiled.graph.input] == ["x", "w"] and compiled.graph.initializer[0].name == "w"


def test_a_constant_graph_output_keeps_its_name() -> None:
    compiled = run_passes("agraph (float[2] x) => (float[2] y, int64[1] n) { n = Shape(x) y = Relu(x) }", PASS)
    assert ops(compiled) == ["Relu"] and _initializers(compiled) == {"n": [2]}


def test_in_a_loop_body_and_in_a_function() -> None:
    loop = """agraph (float[2] x) => (float[2] y) {{
        m = Constant <value = int64 {{2}}> () c = Constant <value = bool {{1}}> () k = Constant <value_float = 2.0> ()
        {outer} y = Loop (m, c, x) <body = b (int64 i, bool go, float[2] s) => (bool again, float[2] t) {{
            again = Identity(go) {inner} }}> }}"""
    compiled = run_passes(loop.format(outer="", inner="q = Exp(k) t = Mul(s, q)"), PASS)
    loop_body = compiled.graph.node[0].attribute[0].g
    assert [node.op_type for node in loop_body.node] == ["Identity", "Mul"]
    function = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        agraph (float[3] x) => (float[3] y) { y = my.F(x) }
        <domain: "my", opset_import: ["" : 17]> F (a) => (b) {
            k = Constant <value_ints = [1, 2]> () s = Add(k, k) t = Cast <to = 1> (s)
            u = ReduceSum <keepdims = 0> (t) b = Add(a, u) }"""
    compiled = run_passes(function, PASS, "eliminate-dead-code")
    assert [node.op_type for node in compiled.functions[0].node] == ["Constant", "Add"]
    assert_same_numbers(model(function), compiled)


def test_what_a_body_hands_out_is_computed_there_from_what_is_folded() -> None:
    compiled = run_passes(
        """agraph (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            y = If (c) <
                then_branch = t () => (float[2] r) { a = Exp(w) b = Neg(a) r = Mul(b, b) },
                else_branch = e () => (float[2] q) { q = Identity(x) }> }""",
        PASS,
        "eliminate-dead-code",
    )
    (node,) = compiled.graph.node
    branch = next(a.g for a in node.attribute if a.name == "then_branch")
    assert [each.op_type for each in branch.node if each.op_type != "Constant"] == ["Mul"]


def test_a_body_and_an_old_file_compute_the_known_shape_that_they_hand_out() -> None:
    assert_stays(
        """agraph (bool c, float[2, 3] x) => (int64[2] y) {
            y = If (c) <
                then_branch = t () => (int64[2] r) { r = Shape(x) },
                else_branch = e () => (int64[2] q) { q = Shape(x) }> }""",
        PASS,
    )
    assert_stays(
        '<ir_version: 3, opset_import: ["" : 7]> agraph (float[2, 3] x) => (int64[2] y) { y = Shape(x) }', PASS
    )


def test_nothing_to_fold() -> None:
    assert_stays("agraph (float[3] x) => (float[3] y) { a = Exp(x) y = Relu(a) }", PASS)
    assert_becomes(
        "agraph (float[3] x) => (float[3] y) { a = Exp(x) y = Relu(a) }",
        "agraph (float[3] x) => (float[3] y) { a = Exp(x) y = Relu(a) }",
        PASS,
    )


def test_the_budget_of_all_results_is_spent_once() -> None:
    """Compiling the output again folds no more than the first time."""
    count = 8
    body = " ".join(
        f"s{i} = Constant<value = int64[1] {{{200 + i}}}>() t{i} = Expand(k, s{i}) y{i} = Pow(x{i}, t{i})"
        for i in range(count)
    )
    given = ", ".join(f"float[{200 + i}] x{i}" for i in range(count))
    made = ", ".join(f"float[{200 + i}] y{i}" for i in range(count))
    text = f"agraph ({given}) => ({made}) <float[1] k = {{2}}> {{ {body} }}"
    spec = "fold-constants{max_growth=2KiB}"
    once = run_passes(text, spec)
    assert ops(once).count("Expand") == 6
    assert run_passes(once, spec).SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    assert_same_numbers(model(text), once)
