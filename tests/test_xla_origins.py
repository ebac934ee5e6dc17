"""The schedule of XLA says which nodes of the model, and which Python lines, each of its nodes comes from."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx.parser
import pytest
import zstandard
from cli_support import Pfvm
from pfvm import load as load_model
from pfvm.passes.provenance import names

pytest.importorskip("jax")

from pfvm.runtime.xla.scheduled import read_hlo

NET = """<ir_version: 10, opset_import: ["" : 21]>
g (float[4,8] x) => (float[4,8] y) <float[8,8] w = {W}, int64 trips = {300}, bool go = {1}>
{ [odd] "a/b: c" = MatMul (x, w)  e = Exp ("a/b: c")
  y = Loop <body = b (int64 i, bool c, float[4,8] a) => (bool k, float[4,8] n)
    { k = Identity (c)  p = MatMul (a, w)  s = Tanh (p)  n = Add (s, e) }> (trips, go, e) }"""
HLO = """\
HloModule jit_f, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %e = f32[8]{0} exponential(%p), metadata={op_name="jit(f)/of:e/exp"}
  ROOT %t = f32[8]{0} tanh(%e), metadata={op_name="jit(f)/of:loop/while/body/of:t%2F1/tanh" stack_frame_id=3}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0), metadata={op_name="arguments[0]"}
  %f = f32[8]{0} fusion(%a), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/of:loop/while/body/of:t%2F1/tanh"}
  ROOT %c = f32[8]{0} copy(%f)
}
"""


def origins(node: onnx.NodeProto) -> list[str]:
    return names(next((each.value for each in node.metadata_props if each.key == "pfvm.from"), None))


def nodes_in(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    bodies = [each.g for node in graph.node for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    return [*graph.node, *(node for body in bodies for node in nodes_in(body))]


def drawn(folder: pathlib.Path) -> list[onnx.NodeProto]:
    packed = (folder / "l3ir_stripped.onnx.zst").read_bytes()
    return nodes_in(onnx.load_model_from_string(zstandard.ZstdDecompressor().decompress(packed)).graph)


def saved(folder: pathlib.Path) -> pathlib.Path:
    text = NET.replace("W", ",".join(str(i % 7 / 9 - 0.3) for i in range(64)), 1)
    onnx.save(onnx.parser.parse_model(text), folder / "net.onnx")
    return folder / "net.onnx"


def test_a_fusion_comes_from_its_results_node_and_what_is_in_it() -> None:
    fusion, copy = read_hlo(HLO, ["x"]).graph
    assert names(fusion.metadata_props["pfvm.from"]) == ["t/1", "e"]
    assert "pfvm.from" not in copy.metadata_props


def check(folder: pathlib.Path) -> None:
    stages = [nodes_in(onnx.load(folder / name).graph) for name in ("model.onnx", "pfvm.onnx")]
    found = {name for node in drawn(folder) for name in origins(node)}
    assert {"a/b: c", "e", "p", "s", "n"} <= found
    assert found <= {name for nodes in stages for node in nodes for name in (node.name, *node.output)}


def test_nodes_of_a_schedule_name_those_of_the_model_in_bodies_too(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    assert pfvm("compile", saved(tmp_path), "--device", "xla:cpu", "--artifacts", tmp_path / "out").code == 0
    check(tmp_path / "out")


def test_a_program_that_is_not_described_has_no_names_and_may_be_in_the_cache(
    pfvm: Pfvm, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFVM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pfvm.runtime.xla.cache._MIN_SECONDS", 0)
    model = load_model(saved(tmp_path), "xla:cpu")
    model({"x": np.ones((4, 8), np.float32)})
    assert "of:" not in model.programs()[0].function.as_text() and list((tmp_path / "cache").iterdir())
    assert pfvm("compile", saved(tmp_path), "--device", "xla:cpu", "--artifacts", tmp_path / "out").code == 0
    check(tmp_path / "out")


@pytest.mark.tpu
def test_nodes_of_a_tpus_schedule_do_so(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("libtpu")
    options = ("--device", "xla:tpu@v5e:1x1", "--effort", "fast", "--artifacts", tmp_path / "out")
    assert pfvm("compile", saved(tmp_path), *options).code == 0
    check(tmp_path / "out")


def test_a_functions_schedule_names_its_python_lines(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    from pfvm import compile as compile_function

    def function(x: object) -> object:
        return torch.tanh(x @ x)

    compile_function(function, torch.ones(8, 8), device="xla:cpu", codegen_dir=tmp_path)
    lines = [entry.value for node in drawn(tmp_path) for entry in node.metadata_props if entry.key == "pfvm.source"]
    assert lines and all(pathlib.Path(line.rpartition(":")[0]).name == pathlib.Path(__file__).name for line in lines)
