"""Promise: `pfvm stats` counts what is in a model, and never shows a number of flops that something unknown is in."""

from __future__ import annotations

import json
import pathlib

import onnx
import pfvm as pfvm_package
import pytest
from cli_support import Pfvm, one_line
from onnx import TensorProto, helper
from pfvm.compiler.amounts import Amount, dim_amount
from pfvm.compiler.flops import Flops, count_flops
from pfvm.compiler.importer import read_model
from pfvm.tools.stats import as_dict, collect
from support import SHARED, model

LOOP = """agraph (float[batch,4] x, int64 n) => (float[batch,4] y) <int64 three = {3}, bool go = {1}, float[4,4] w>
{ y = Loop <body = g (int64 i, bool c, float[batch,4] h) => (bool d, float[batch,4] k)
      { d = Identity(c) k = MatMul(h, w) }> (TRIPS, go, x) }"""


def flops(text: str, **shapes: tuple[int, ...]) -> Flops:
    """Of a graph as text; float initializers without values are inputs' shapes only."""
    proto = model(text)
    return count_flops(read_model(proto), shapes)


@pytest.mark.parametrize(
    ("node", "inputs", "expected"),
    [
        ("Gemm <transB=1> (x, w, b)", "float[2,3] x, float[5,3] w, float[5] b", 2 * 5 * (2 * 3 + 1)),
        ("MatMul (x, w)", "float[7,2,3] x, float[3,5] w", 2 * 7 * 2 * 3 * 5),
        ("Conv <pads=[1,1,1,1]> (x, w)", "float[2,3,8,8] x, float[4,3,3,3] w", 2 * (2 * 4 * 8 * 8) * 27),
        ("Conv <group=3> (x, w)", "float[1,3,8,8] x, float[3,1,3,3] w", 2 * (3 * 6 * 6) * 9),
        ("ConvTranspose (x, w)", "float[1,2,4,4] x, float[2,3,2,2] w", 2 * 32 * 12),
        ("Softmax (x)", "float[4,10] x", 200),
        ("ReduceSum <keepdims=0> (x)", "float[4,10] x", 40),
        ("Relu (x)", "float[4,10] x", 40),
        ("Transpose (x)", "float[4,10] x", 0),
        ('Einsum <equation="bhid,bhjd->bhij"> (x, w)', "float[2,3,5,7] x, float[2,3,4,7] w", 2 * 2 * 3 * 5 * 4 * 7),
        ("MaxPool <kernel_shape=[2,2]> (x)", "float[1,1,4,4] x", 9 * 4),
    ],
)
def test_operations_of_an_operator(node: str, inputs: str, expected: int) -> None:
    found = flops(f"agraph ({inputs}) => (float y) {{ y = {node} }}")
    assert found.total == expected and found.value() == expected
    assert not found.not_counted and not found.one_per_element


def test_attention_counts_its_products() -> None:
    text = """<ir_version: 10, opset_import: ["" : 23]>
    agraph (float[2,8,16,64] q, float[2,8,32,64] k, float[2,8,32,64] v) => (float y) { y = Attention(q, k, v) }"""
    assert flops(text).value() == 2 * 16 * 32 * (4 * 8 * 64 + 5 * 8)


def test_symbolic_dims_give_a_formula() -> None:
    text = "agraph (float[batch,seq,8] x, float[8,8] w) => (float[batch,seq,8] y) { y = MatMul(x, w) }"
    found = flops(text)
    assert found.total.formula() == "128·batch·seq" and found.value() == 128
    assert flops(text, x=(4, 10, 8)).total == 128 * 40
    image = "agraph (float[n,3,?,?] x, float[1,3,1,1] w) => (float y) { y = Conv(x, w) }"
    assert flops(image).value() == 224 * 224 * 6 and flops(image).sizes["n"] == 1


def test_a_loop_counts_as_often_as_it_runs() -> None:
    known = LOOP.replace("TRIPS", "three").replace(", float[4,4] w>", ">").replace("int64 n)", "float[4,4] w)")
    assert flops(known).total.formula() == "96·batch"
    unknown = LOOP.replace("TRIPS", "n").replace(", float[4,4] w>", ">").replace("int64 n)", "int64 n, float[4,4] w)")
    assert flops(unknown).total.formula() == "32·batch·(iterations of Loop (→ 'y'))"


def test_a_carried_value_whose_shape_changes_is_not_counted() -> None:
    grows = """agraph (float[1,4] x) => (float y) <int64 three = {3}, bool go = {1}>
    { y = Loop <body = g (int64 i, bool c, float[n,4] h) => (bool d, float[m,4] k)
      { d = Identity(c) e = Exp(h) k = Concat <axis=0> (e, h) }> (three, go, x) }"""
    assert flops(grows).not_counted == {"Exp": 1}


def test_of_an_if_the_dearer_branch_counts() -> None:
    found = flops(
        """agraph (bool c, float[10] x) => (float[10] y) { y = If (c) <
        then_branch = t () => (float[10] a) { a1 = Exp(x) a = Exp(a1) },
        else_branch = e () => (float[10] b) { b = Exp(x) }> }"""
    )
    assert found.total == 20 and found.branches == 1


def test_functions_count_at_each_call() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    agraph (float[10] x) => (float[10] y) { a = f.F(x) y = f.F(a) }
    <domain: "f", opset_import: ["" : 17]> F (u) => (v) { t = Exp(u) v = Neg(t) }"""
    assert flops(text).total == 40


def test_what_is_not_known_is_said() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> agraph (float[10] x) => (y) { a = my.Op(x) y = Exp(a) }'
    assert flops(text).not_counted == {"my::Op": 1, "Exp": 1}
    data = "agraph (float[10] x) => (float y) { i = NonZero(x) f = Cast <to=1> (i) y = Exp(f) }"
    found = flops(data)
    assert len(found.unknown_sizes) == 1 and found.one_per_element == {"NonZero": 1}


def test_amounts() -> None:
    b, s = Amount.atom("b"), Amount.atom("s")
    assert ((b + 1) * (s + 2)).formula() == "b·s + 2·b + s + 2"
    assert Amount.most([3 * b, 2 * b + s]).formula() == "3·b + s"
    assert dim_amount("8*floor(h/2) + 8").formula() == "8·(floor(h/2) + 1)"
    assert dim_amount("b*s**2").formula() == "b·s²"


def test_the_table_puts_models_side_by_side(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    onnx.save(model("agraph (float[n,3] x) => (float[n,3] y) <float[3] w = {1,2,3}> { a = Mul(x, w) y = Relu(a) }"),
              tmp_path / "a.onnx")  # fmt: skip
    pfvm_package.optimize(tmp_path / "a.onnx", output=tmp_path / "b.onnx", opt_level=0)
    result = pfvm("stats", tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert result.code == 0
    rows = {line.split()[0]: line.split() for line in result.out.splitlines() if line.strip()}
    assert rows["flops"] == ["flops", "6", "*", "6", "*"] and rows["parameters"] == ["parameters", "3", "3"]
    assert "flops: 6·n; in the table with n = 1 (--shape gives others)" in result.out
    assert "dynamic dim n: x[0], y[0]" in result.out and "constant 'w': float[3], 12 B" in result.out


def test_json_has_everything(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    onnx.save(model(LOOP.replace("TRIPS", "n").replace(", float[4,4] w>", ", float[4,4] w = {" + "1," * 15 + "1}>")),
              tmp_path / "m.onnx")  # fmt: skip
    (found,) = json.loads(pfvm("stats", tmp_path / "m.onnx", "--json").out)["models"]
    assert found["ops"] == {"Identity": 1, "Loop": 1, "MatMul": 1} and found["nodes"] == 3
    assert found["control_flow"] == {"Loop": 1} and found["depth"] == 1
    assert found["parameters"] == 18 and found["dtypes"]["float"] == {"tensors": 1, "elements": 16, "bytes": 64}
    assert found["dynamic_dims"] == {"batch": ["x[0]", "y[0]"]} and found["opsets"] == {"ai.onnx": 17}
    assert found["flops"]["formula"].startswith("32·batch·(iterations of Loop")


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    onnx.save(model("agraph (float[3] x) => (float[3] y) { y = Relu(x) }"), tmp_path / "a.onnx")
    assert "bad.onnx: not an ONNX model" in one_line(pfvm("stats", tmp_path / "bad.onnx"))
    both = pfvm("stats", tmp_path / "bad.onnx", tmp_path / "a.onnx")
    assert both.code == 2 and "Relu" in both.out and "bad.onnx: not an ONNX model" in both.err
    assert "no such input" in one_line(pfvm("stats", tmp_path / "a.onnx", "--shape", "z=1"))


def test_weights_are_not_read(tmp_path: pathlib.Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[24576, 32768])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(24576 * 32768 * 4)  # sparse: 3 GiB that take no room, and no time unless they are read
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 24576])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32768])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    found = as_dict(collect(tmp_path / "m.onnx"), 1)
    assert found["parameter_bytes"] == 3 * 2**30 and found["flops"]["formula"] == f"{2 * 24576 * 32768:,}·batch"
    assert found["largest"][0]["shape"] == (24576, 32768)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "corpus").exists(), reason="the shared corpus is not here")
def test_every_file_of_the_corpus_has_figures() -> None:
    errors = []
    for path in sorted((SHARED / "corpus").rglob("*.onnx")):
        found = collect(path)
        if found.error:
            errors.append(found.error)
        else:
            json.dumps(as_dict(found, 3))
    assert len(errors) <= 2 and all("are not supported yet" in error for error in errors)
