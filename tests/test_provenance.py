"""New nodes say which rule made them and which nodes of the Exported model they stand for."""

from __future__ import annotations

import json
import pathlib

import onnx
import onnx_ir as ir
import pfvm
import pytest
from onnx import helper
from pfvm.compiler.driver import compile_model
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import parse
from pfvm.passes.provenance import FROM, LONGEST, RULE, names
from pfvm.tools.view.data import directory_data
from pfvm.tools.view.folder import open_folder
from support import model

PRODUCT = """agraph (float[N,8] x, float[8,4] w, float[4] c) => (float[N,4] y) {
    [mm] h = MatMul(x, w) [add] a = Add(h, c) [relu] y = Relu(a) }"""


def metadata(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def made(proto: onnx.ModelProto) -> dict[str, tuple[str, list[str]]]:
    """Operator → rule and names, of the nodes of the main graph that a pass made."""
    found = {node.op_type: metadata(node) for node in proto.graph.node}
    return {op: (meta[RULE], json.loads(meta[FROM])) for op, meta in found.items() if RULE in meta}


def test_a_new_node_names_its_rule_and_what_it_stands_for() -> None:
    compiled = pfvm.optimize(model(PRODUCT))
    ((rule, of),) = made(compiled).values()
    assert rule.startswith("fuse-matmul-bias/") and of == ["mm", "add"]
    assert metadata(compiled.graph.node[1]) == {}, "Relu is the user's own"


def test_names_are_those_of_the_exported_model_after_several_rules() -> None:
    compiled = pfvm.optimize(
        model(
            """agraph (float[N,8] x, float[4,8] w, float[4] c) => (float[N,4] y) {
            [t] v = Transpose<perm = [1, 0]>(w) [mm] h = MatMul(x, v) [add] y = Add(h, c) }"""
        )
    )
    assert [node.op_type for node in compiled.graph.node] == ["Gemm"]
    assert sorted(made(compiled)["Gemm"][1]) == ["add", "mm", "t"]


def test_only_what_the_new_node_computes_counts() -> None:
    """The part of the Concat that nobody reads goes as well, but the Slice does not stand for it."""
    compiled = pfvm.optimize(
        model(
            """agraph (float[4] x, float[4] z) => (float[2] y) {
            [exp] e = Exp(z) [log] l = Log(e) [join] c = Concat<axis = 0>(x, l)
            s = Constant<value = int64[1] {1}>() t = Constant<value = int64[1] {3}>() [cut] y = Slice(c, s, t) }"""
        )
    )
    assert made(compiled) == {"Slice": ("simplify-slices/slice_of_concat", ["join", "cut"])}


def test_a_node_without_a_name_is_known_by_its_output() -> None:
    compiled = pfvm.optimize(model(PRODUCT.replace("[mm]", "").replace("[add]", "").replace("[relu]", "")))
    assert made(compiled)["Gemm"][1] == ["h", "a"]
    last = pfvm.optimize(
        model("agraph (float[N,8] x, float[8,4] w, float[4] c) => (float[N,4] y) { h = MatMul(x, w) y = Add(h, c) }")
    )
    assert made(last)["Gemm"][1] == ["h", "y"], "an output is renamed while it is replaced"


def test_copies_of_a_body_stand_for_the_nodes_of_the_body() -> None:
    text = """agraph (float[3] x) => (float[3] y) {
        n = Constant<value = int64 {2}>() go = Constant<value = bool {1}>()
        [loop] y = Loop (n, go, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] r) {
            [keep] d = Identity(c) [neg] k = Neg(a) [exp] r = Exp(k) }> }"""
    compiled = pfvm.optimize(model(text))
    assert [node.op_type for node in compiled.graph.node] == ["Neg", "Exp"] * 2
    assert made(compiled) == {
        "Neg": ("unroll-loops/unrolled loop", ["neg"]),
        "Exp": ("unroll-loops/unrolled loop", ["exp"]),
    }


def test_nodes_of_nested_bodies_are_labelled_too() -> None:
    text = """agraph (float[3] x, bool k) => (float[3] y) { yes = Constant<value = bool {1}>()
        [outer] y = If (yes) <
            then_branch = t () => (float[3] p) { [inner] p = If (k) <
                then_branch = tt () => (float[3] q) { [neg] q = Neg(x) },
                else_branch = te () => (float[3] r) { [exp] r = Exp(x) }> },
            else_branch = e () => (float[3] s) { [abs] s = Abs(x) }> }"""
    (node,) = read_model(pfvm.optimize(model(text))).graph
    inner = [each for attribute in node.attributes.values() for each in attribute.as_graph()]
    assert [names(each.metadata_props.get(FROM)) for each in [node, *inner]] == [["inner"], ["neg"], ["exp"]]
    assert {each.metadata_props[RULE] for each in [node, *inner]} == {"simplify-if/constant_condition"}


def test_an_inlined_call_stands_for_the_call_and_the_body() -> None:
    compiled = pfvm.optimize(
        model(
            """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            agraph (float[3] x) => (float[3] y) { [call] y = my.F(x) }
            <domain: "my", opset_import: ["" : 17]> F (a) => (b) { [square] b = Mul(a, a) }"""
        )
    )
    assert made(compiled) == {"Mul": ("inline-functions/inlined call", ["call", "square"])}


@pytest.mark.parametrize("version", [7, 8, 10])
def test_compiling_again_changes_nothing_and_the_file_is_valid(version: int) -> None:
    proto = model(PRODUCT)
    proto.ir_version = version
    compiled = pfvm.optimize(proto)
    onnx.checker.check_model(compiled, full_check=True)
    assert pfvm.optimize(compiled).SerializeToString(deterministic=True) == compiled.SerializeToString(
        deterministic=True
    )
    assert pfvm.optimize(proto) == compiled


def test_the_users_metadata_survives() -> None:
    proto = model(PRODUCT)
    for node, value in zip(proto.graph.node, "abc"):
        node.metadata_props.add(key="mine", value=value)
    compiled = pfvm.optimize(proto)
    assert [metadata(node)["mine"] for node in compiled.graph.node] == ["b", "c"]
    assert metadata(compiled.graph.node[0]).keys() == {"mine", RULE, FROM}


def test_strip() -> None:
    assert made(pfvm.optimize(model(PRODUCT), strip_provenance=True)) == {}
    proto = pfvm.optimize(model(PRODUCT))
    proto.graph.node[0].metadata_props.add(key="mine", value="a")
    stripped = pfvm.optimize(proto, strip_provenance=True)
    assert [metadata(node) for node in stripped.graph.node] == [{"mine": "a"}, {}]


def test_long_lists_are_cut() -> None:
    count = 3 * LONGEST
    nodes = [helper.make_node("Add", [f"v{i}", "one"], [f"v{i + 1}"], name=f"add{i}") for i in range(count)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [3]) for name in ("v0", f"v{count}")]
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [], [1])
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [one])
    compiled = pfvm.optimize(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert len(compiled.graph.node) == 1
    listed = json.loads(metadata(compiled.graph.node[0])[FROM])
    assert len(listed) == LONGEST + 1 and listed[-1] is None and set(listed[:-1]) <= {n.name for n in nodes}
    assert names(metadata(compiled.graph.node[0])[FROM]) == listed[:-1]


def test_the_viewer_reads_them(tmp_path: pathlib.Path) -> None:
    pfvm.optimize(model(PRODUCT), artifacts=tmp_path)
    stages = directory_data(open_folder(tmp_path), "net")["stages"]
    (compiled,) = (stage for stage in stages if stage["file"] == "pfvm.onnx")
    assert [node["from"] for node in compiled["nodes"]] == [["mm", "add"], []]
    assert compiled["nodes"][0]["rule"].startswith("fuse-matmul-bias/")


def test_what_is_moved_out_of_a_loop_stands_for_itself() -> None:
    text = """agraph (float[3] x, float[3] w, int64 n) => (float[3] y) {
        go = Constant<value = bool {1}>()
        [loop] y = Loop (n, go, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] r) {
            [keep] d = Identity(c) [exp] e = Exp(w) [add] r = Add(a, e) }> }"""
    assert made(pfvm.optimize(model(text)))["Exp"] == ("hoist-loop-invariants/loop invariant", ["exp"])


def test_another_programs_text_under_the_same_key_is_a_name() -> None:
    proto = model(PRODUCT)
    proto.graph.node[0].metadata_props.add(key=FROM, value="of theirs, not JSON")
    assert made(pfvm.optimize(proto))["Gemm"][1] == ["of theirs, not JSON", "add"]


def test_passes_alone_label_too_but_a_bare_rewriter_does_not() -> None:
    options = parse(opt_level=0, passes=("infer-shapes", "fuse-matmul-bias"))
    source = read_model(model(PRODUCT))
    assert made(to_proto(compile_model(source, options).model))
    assert not any(RULE in node.metadata_props for node in source.graph), "the source is not changed"
    assert isinstance(source, ir.Model)
