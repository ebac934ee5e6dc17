"""`pfvm explain` says which rules were tried at a node, why each was refused, and what became of it."""

from __future__ import annotations

import json
import pathlib

import onnx
import onnx_ir as ir
import pfvm as package
import pytest
from cli_support import Pfvm, one_line
from pfvm.tools.following import Follower
from support import model

TEXT = """agraph (float[N,8] x, float[8,4] w, float[4] c, float[M,4] d, bool k)
    => (float[N,4] y, float[N,4] z, float[N,4] u) {
    [mm] h = MatMul(x, w) [add] a = Add(h, c) [same] b = Identity(a) [relu] y = Relu(b)
    [wide] v = MatMul(y, q) [sum] u = Add(v, d)
    q = Constant<value = float[4,4] {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>()
    [cond] z = If (k) <then_branch = t () => (float[N,4] p) { [yes] p = Neg(y) },
                       else_branch = e () => (float[N,4] r) { [no] r = Neg(y) }> }"""


@pytest.fixture
def files(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A model, and the same compiled."""
    proto = model(TEXT)
    proto.graph.node.insert(0, proto.graph.node.pop(6))
    onnx.save(proto, tmp_path / "m.onnx")
    package.optimize(tmp_path / "m.onnx", output=tmp_path / "c.onnx")
    return tmp_path / "m.onnx", tmp_path / "c.onnx"


def test_what_became_of_a_node_and_with_which_others(pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    shown = pfvm("explain", files[0], "mm").out
    assert shown.startswith("MatMul 'mm': (x, w) → (h)\n")
    assert "round 1: fuse-matmul-bias/product_and_bias: MatMul 'mm', with Add 'add' → Gemm 'add_1'" in shown
    assert "in the end: Gemm 'add_1': (x, w, c) → (a_1)" in shown
    assert "fuse-transpose-gemm  transpose_into_matmul" in shown, "tried, and did not match"


def test_why_a_rule_was_refused_also_at_the_root_of_the_pattern(
    pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path]
) -> None:
    for node in ("sum", "wide", "v"):  # v is what wide makes
        shown = pfvm("explain", files[0], node).out
        assert "fuse-matmul-bias/product_and_bias  Add 'sum'" in shown
        assert "what is added is not proved to broadcast to the product" in shown
        assert "in the end: as it was" in shown


def test_what_took_the_place_of_a_node_that_is_gone(pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    shown = pfvm("explain", files[0], "same").out
    assert "eliminate-identity/identity: Identity 'same': readers read 'a' of Add 'add' instead" in shown
    assert "in the end: no node of its own" in shown
    assert "Neg 'no': dropped with If 'cond', in whose body it was" in pfvm("explain", files[0], "no").out
    assert "simplify-if/equal_branches: Neg 'yes' → Neg 'yes_1'" in pfvm("explain", files[0], "yes").out


def test_a_compiled_file_says_what_made_a_node(pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    shown = pfvm("explain", files[1], "add_1").out
    assert "made by fuse-matmul-bias/product_and_bias from mm, add" in shown and "as it was" in shown
    assert pfvm("explain", files[1], "mm").out.startswith("'mm' is now part of Gemm 'add_1'\n\nGemm 'add_1'")
    gone = one_line(pfvm("explain", files[1], "same"))
    assert "a node that passes removed is explained with the file that it was in" in gone


def test_what_is_no_node(pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    assert "no node or tensor 'rela'; did you mean 'relu'" in one_line(pfvm("explain", files[0], "rela"))
    assert "'c' is an input of the model, not a node; it is read by Add 'add'" in one_line(
        pfvm("explain", files[0], "c")
    )
    assert "'q' is a constant of the model, not a node; it is read by MatMul 'wide'" in one_line(
        pfvm("explain", files[0], "q")
    )


def test_passes_and_rules_are_chosen_as_in_compile(
    pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    assert "no pass has a rule for this operator" in pfvm("explain", files[0], "mm", "-O", "0").out
    assert "fuse-matmul-bias" not in pfvm("explain", files[0], "mm", "--disable", "fuse-matmul-bias").out
    rules = tmp_path / "mine.py"
    rules.write_text(
        "from pfvm.passes import rule\n\n"
        "@rule('MatMul')\ndef ours(node, rw):\n    return rw.reject('ours', 'not today')\n"
    )
    shown = pfvm("explain", files[0], "mm", "--rules", rules, "-O0").out
    assert "mine.py/ours  MatMul 'mm'  not today" in shown


PASSES = [
    (
        "agraph (int64 n, float[3] x, bool g) => (float[3] y) "
        "{ [loop] y = Loop (n, g, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] r) "
        "{ d = Identity(c) e = Exp(a) r = Neg(e) }> }",
        "loop",
        "unroll-loops/unrolled loop  Loop 'loop'  how often it runs is not known",
    ),
    (
        "agraph (float[3] x) => (float[3] y) { [draw] r = RandomNormal<shape=[3]>() y = Add(x, r) }",
        "draw",
        "fold-constants/constant  RandomNormal 'draw'  it draws numbers",
    ),
    (
        "agraph (float[2,3] x) => (float[3,2] y, float[3,2] z) "
        "{ [turn] a = Transpose<perm=[1,0]>(x) y = Exp(a) z = Transpose<perm=[1,0]>(b) b = Identity(x) }".replace(
            "z = Transpose<perm=[1,0]>(b) b = Identity(x)", "z = Neg(a)"
        ),
        "turn",
        "move-transposes/turned_region  Exp (→ 'y')    no fewer Transposes would be left",
    ),
    (
        "agraph (float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y) <float[2] s = {1, 2}> "
        "{ [conv] c = Conv(x, w) [norm] y = BatchNormalization(c, s, s, s, s) }",
        "conv",
        "fuse-conv/normalized  BatchNormalization 'norm'  the weights are not constant",
    ),
    (
        "agraph (float[4] x, int64[1] e) => (float[K] y) <int64[1] s = {0}> { [cut] y = Slice(x, s, e) }",
        "cut",
        "eliminate-identity/slice_everything  Slice 'cut'  its bounds are only known at run time",
    ),
]


@pytest.mark.parametrize(
    ("text", "node", "line"), PASSES, ids=lambda value: str(value)[:20] if " " not in value else ""
)
def test_passes_of_every_kind_give_their_reasons(
    pfvm: Pfvm, tmp_path: pathlib.Path, text: str, node: str, line: str
) -> None:
    onnx.save(model(text), tmp_path / "m.onnx")
    shown = " ".join(pfvm("explain", tmp_path / "m.onnx", node).out.split())
    assert " ".join(line.split()) in shown


def test_for_one_runtime(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    text = """agraph (float[2,3] a, float[2,3] b, float[3] s) => (float[2,3] y) {
        [add] x = Add(a, b) [norm] y = LayerNormalization(x, s) }"""
    onnx.save(model(text), tmp_path / "m.onnx")
    assert "ort-norms" not in pfvm("explain", tmp_path / "m.onnx", "add").out
    shown = pfvm("explain", tmp_path / "m.onnx", "add", "--target", "ort").out
    assert "ort-norms/sum_before_norm: Add 'add' → Sum 'add_1'" in shown


def test_json(pfvm: Pfvm, files: tuple[pathlib.Path, pathlib.Path]) -> None:
    told = json.loads(pfvm("explain", files[0], "mm", "--json").out)
    (node,) = told["nodes"]
    assert (told["asked"], node["node"], node["rule"]) == ("mm", "MatMul 'mm'", None)
    assert node["steps"][0]["rule"] == "fuse-matmul-bias/product_and_bias"
    assert node["end"] == ["Gemm 'add_1': (x, w, c) → (a_1)"]
    (refused,) = json.loads(pfvm("explain", files[0], "sum", "--json").out)["nodes"][0]["refused"]
    assert refused["at"] == "Add 'sum'" and "not proved" in refused["why"]
    (made,) = json.loads(pfvm("explain", files[1], "mm", "--json").out)["nodes"]
    assert made["from"] == ["mm", "add"]


def test_a_rule_that_matched_in_another_round_is_not_among_those_that_did_not() -> None:
    graph = ir.from_proto(model("agraph (float[3] x) => (float[3] y) { y = Neg(x) }"))
    node = graph.graph.node(0)
    follower = Follower(lambda _: [node])
    follower.started("one", graph)
    follower.rewritten("rule", node, [], [])
    follower.started("one", graph)
    for rule in ("rule", "other"):
        follower.refused(rule, node)
    assert follower.never_matched() == {"one": ["other"]}


def test_a_function_that_nobody_calls_any_more(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> agraph (float[3] x) => (float[3] y)
        { a = my.F(x) y = Neg(x) }
        <domain: "my", opset_import: ["" : 17]> F (a) => (c) { [inner] b = Sin(a) c = Neg(b) }"""
    onnx.save(model(text), tmp_path / "m.onnx")
    shown = pfvm("explain", tmp_path / "m.onnx", "inner").out
    assert "in the end: gone, with the function or body that it was in" in shown


def test_nodes_of_one_name_are_all_explained(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    proto = model("agraph (float[3] x) => (float[3] y) { a = Exp(x) b = Identity(a) c = Neg(b) y = Identity(c) }")
    for node in proto.graph.node:
        node.name = node.op_type
    onnx.save(proto, tmp_path / "m.onnx")
    shown = pfvm("explain", tmp_path / "m.onnx", "Identity").out
    assert shown.startswith("2 nodes are called 'Identity'\n\nIdentity 'Identity': (a) → (b)")
    assert "\n\nIdentity 'Identity': (c) → (y)" in shown
