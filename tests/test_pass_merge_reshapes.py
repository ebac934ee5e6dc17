"""merge-reshapes: chains of views and transposes, and reductions that keep or drop their dims."""

from __future__ import annotations

import onnx
import pytest
from pass_settings import assert_rewritten
from support import HEADER, assert_becomes, assert_same_numbers, assert_stays, model, ops, run_passes

PASSES = ("merge-reshapes", "eliminate-dead-code")
AXES = """a0 = Constant <value = int64[1] {0}> () a1 = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64[1] {2}> () ten = Constant <value = int64[1] {10}> () """


def nodes(proto: onnx.ModelProto) -> list[str]:
    """Operator, tensor that is read, and attributes of every node."""
    found = [n for n in proto.graph.node if n.op_type != "Constant"]
    return [f"{n.op_type} {n.input[0]} {[onnx.helper.printable_attribute(a) for a in n.attribute]}" for n in found]


CHAINS = {
    "transposes": ("float[2,3] x", "float[2,3] y", "t = Transpose(x) u = Transpose(t) y = Neg(u)", "y = Neg(x)"),
    "permutations": (
        *("float[2,3,4] x", "float[3,4,2] y"),
        "t = Transpose <perm = [2,0,1]> (x) y = Transpose <perm = [2,0,1]> (t)",
        "y = Transpose <perm = [1,2,0]> (x)",
    ),
    "unsqueezes": ("float[3] x", "float[1,3,1] y", "t = Unsqueeze(x, a1) y = Unsqueeze(t, a0)", "y = Unsqueeze(x, a0)"),
    "squeezes": ("float[1,1,3] x", "float[3] y", "t = Squeeze(x, a0) y = Squeeze(t, a0)", "y = Squeeze(x, a0)"),
    "reshape": ("float[2,5] x", "float[10] y", "t = Unsqueeze(x, a0) y = Reshape(t, ten)", "y = Reshape(x, ten)"),
    "mixed": (
        *("float[10] x", "float[1,10,1] y"),
        "t = Unsqueeze(x, a1) u = Reshape(t, ten) v = Unsqueeze(u, a0) y = Unsqueeze(v, two)",
        "y = Unsqueeze(x, a0)",
    ),
    "and back": ("float[2,N] x", "float[2,N] y", "t = Unsqueeze(x, a0) u = Squeeze(t, a0) y = Neg(u)", "y = Neg(x)"),
    "dropped dims": (
        *("float[4,10] x", "float[10] y", "s = ReduceSum(x, a0) y = Reshape(s, ten)"),
        "y = ReduceSum <keepdims = 0> (x, a0)",
    ),
    "kept dims": (
        *("float[4,10] x", "float[1,10] y", "s = ReduceSum <keepdims = 0> (x, a0) y = Unsqueeze(s, a0)"),
        "y = ReduceSum(x, a0)",
    ),
    "single numbers": (
        *("float[N,1] x", "float[N] y", "y = ReduceSum <keepdims = 0> (x, a1)"),
        "y = Squeeze(x, a1)",
    ),
    "sum of squares": (
        *("float[4,10] x", "float[1,10] y", "s = ReduceSumSquare <axes = [0], keepdims = 0> (x) y = Unsqueeze(s, a0)"),
        "y = ReduceSumSquare <axes = [0]> (x)",
    ),
    "index": (
        *("float[4,N] x", "int64[4] y", "s = ArgMax <axis = -1> (x) y = Squeeze(s, a1)"),
        "y = ArgMax <axis = -1, keepdims = 0> (x)",
    ),
    "axes as attribute": (
        *("float[N,10] x", "float[N] y", "s = ReduceMax <axes = [1]> (x) y = Squeeze(s, a1)"),
        "y = ReduceMax <axes = [1], keepdims = 0> (x)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "result", "before", "after"), CHAINS.values(), ids=list(CHAINS))
def test_a_chain_becomes_one_node(given: str, result: str, before: str, after: str) -> None:
    text = f"agraph ({given}) => ({result}) {{ {AXES} {before} }}"
    compiled = run_passes(text, *PASSES)
    expected = onnx.parser.parse_model(f"{HEADER} agraph ({given}) => ({result}) {{ {AXES} {after} }}")
    assert nodes(compiled) == nodes(expected)
    assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize(
    "graph",
    [
        "(float[4,10] x) => (float[4,1] s, float[4] y) { s = ReduceMax <axes = [1]> (x) y = Squeeze(s, a1) }",
        "(float[2,3] x) => (float[3,2] t, float[6] y) { t = Transpose(x) m = Constant <value = int64[1] {-1}> () "
        "y = Reshape(t, m) }",  # a transpose moves elements
        "(float[M,N] x) => (float[A,B,C] y) { z = Constant <value = int64[3] {0, 0, -1}> () t = Unsqueeze(x, a1) "
        "y = Reshape(t, z) }",  # the target copies dims of the value in between
    ],
)
def test_what_stays(graph: str) -> None:
    signature, _, body = graph.partition("{")
    assert_stays(f"agraph {signature} {{ a1 = Constant <value = int64[1] {{1}}> () {body}", "merge-reshapes")


def test_a_view_that_is_also_an_output_stays_one() -> None:
    text = (
        f"agraph (float[2,5] x) => (float[1,2,5] t, float[10] y) {{ {AXES} t = Unsqueeze(x, a0) y = Reshape(t, ten) }}"
    )
    compiled = run_passes(text, *PASSES)
    assert nodes(compiled) == ["Unsqueeze x []", "Reshape x []"]
    assert_same_numbers(model(text), compiled)


def test_a_reduction_is_not_moved_into_a_loop() -> None:
    text = f"""agraph (float[4,10] x) => (float[10] y) {{ {AXES} n = Constant <value = int64 {{2}}> ()
        c = Constant <value = bool {{1}}> () s = ReduceSum(x, a0)
        z = Constant <value = float[10] {{0,0,0,0,0,0,0,0,0,0}}> ()
        y = Loop (n, c, z) <body = b (int64 i, bool go, float[10] p) => (bool again, float[10] q) {{
            again = Identity(go) r = Reshape(s, ten) q = Add(p, r) }}> }}"""
    compiled = run_passes(text, *PASSES)
    assert ops(compiled) == ["ReduceSum", "Loop"]
    assert_same_numbers(model(text), compiled)


def test_in_a_function() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        agraph (float[2,3] x) => (float[2,3] y) { y = f.twice(x) }
        <domain: "f", opset_import: ["" : 17]>
        twice (a) => (b) { t = Transpose <perm = [1,0]> (a) u = Transpose <perm = [1,0]> (t) b = Neg(u) }"""
    compiled = run_passes(text, *PASSES)
    (function,) = compiled.functions
    assert [node.op_type for node in function.node] == ["Neg"]
    assert_same_numbers(model(text), compiled)


ROWS = """agraph (float[B,3,4] x, float[4,5] w) => ({out} y) {{
    s = Constant <value = int64[2] {{-1, 4}}> () t = Constant <value = int64[{rank}] {{{target}}}> ()
    r = Reshape(x, s) m = MatMul(r, w) y = Reshape(m, t) }}"""


def test_a_product_of_rows_needs_no_matrix() -> None:
    assert_rewritten(ROWS.format(out="float[B,3,5]", rank=3, target="-1, 3, 5"), ["MatMul"], "merge-reshapes")


def test_rows_that_are_regrouped_stay() -> None:
    assert_stays(ROWS.format(out="float[C,5,3]", rank=3, target="-1, 5, 3"), "merge-reshapes")
    assert_stays(ROWS.format(out="float[3,C,5]", rank=3, target="3, -1, 5"), "merge-reshapes")


@pytest.mark.parametrize(
    ("lines", "shape", "expected"),
    [
        ("r = Reshape(x, s) t = Transpose<perm=[0,3,1,2]>(r) y = Neg(t)", "N,5,1,1", ["Reshape", "Neg"]),
        ("u = Unsqueeze(x, a0) t = Transpose<perm=[1,0,2]>(u) y = Abs(t)", "N,1,5", ["Reshape", "Abs"]),
        ("r = Reshape(x, s) t = Transpose<perm=[3,0,1,2]>(r) y = Neg(t)", "5,N,1,1", ["Reshape", "Transpose", "Neg"]),
        ("u = Neg(x) t = Transpose<perm=[1,0]>(u) y = Unsqueeze(t, a0)", "1,5,N", ["Neg", "Transpose", "Unsqueeze"]),
    ],
)  # fmt: skip
def test_a_transpose_that_moves_no_element(lines: str, shape: str, expected: list[str]) -> None:
    constants = "<int64[4] s = {-1, 1, 1, 5}, int64[1] a0 = {0}>"
    text = f"agraph (float[N,5] x) => (float[{shape}] y) {constants} {{ {lines} }}"
    compiled = run_passes(text, *PASSES)
    assert ops(compiled) == expected
    assert_same_numbers(model(text), compiled)


JOINED = """agraph (float[B,2,3,4] x) => (float[B,2,4,3] y)
  <int64[3] joined = {{-1, 3, {last}}}, int64[4] apart = {{-1, 2, 4, 3}}> {{
  j = Reshape(x, joined) t = Transpose<perm=[{perm}]>(j) y = Reshape(t, apart) }}"""


def test_a_transpose_of_matrices_whose_batch_was_joined() -> None:
    assert_becomes(
        JOINED.format(last=4, perm="0,2,1"),
        "agraph (float[B,2,3,4] x) => (float[B,2,4,3] y) { y = Transpose<perm=[0,1,3,2]>(x) }",
        "keep-batch-dims",
        "eliminate-dead-code",
    )


@pytest.mark.parametrize(("last", "perm"), [(8, "0,2,1"), (4, "2,0,1"), (4, "1,0,2")])
def test_other_transposes_of_joined_dims_stay(last: int, perm: str) -> None:
    assert_stays(JOINED.format(last=last, perm=perm), "keep-batch-dims")
