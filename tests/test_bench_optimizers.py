"""Promises of `pfvm bench --optimizers`: fresh processes, honest figures, what fails or is missing is said by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from pfvm.errors import OptionError
from pfvm.tools.bench.optimizers import latency, optimizing
from pfvm.tools.bench.optimizers.chain import chain
from pfvm.tools.bench.optimizers.command import OptimizersRequest, bench_optimizers
from pfvm.tools.bench.optimizers.optimizing import Optimizer, nodes
from pfvm.tools.bench.optimizers.report import print_chain, print_model

TEXT = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]> g (float[n,8] x) => (float[n,8] y)
{ a = Identity (x)  c = Constant <value = float {1.0}> ()  b = own.twice (a)  y = Relu (b) }
<domain: "own", opset_import: ["" : 21]> twice (p) => (q) { r = Neg (p)  q = Neg (r) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_nodes_are_counted_without_functions_and_constants(model: Path) -> None:
    assert nodes(model) == 4


@pytest.mark.slow
def test_a_model_and_the_chain_without_peers(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file, plot_file = tmp_path / "r.json", tmp_path / "r.svg"
    request = OptimizersRequest([model, "chain"], None, json_file, plot_file, 5, 0.005, chain_sizes=(1,))
    report = bench_optimizers(request)
    assert json.loads(json_file.read_text()) == report
    ElementTree.parse(plot_file)
    (measured,), (links,) = report["models"], report["chain"]
    ours, for_ort = measured["results"]
    assert for_ort["optimizer"] == "pfvm-ort" and for_ort["differs"] is None and for_ort["error"] is None
    assert measured["nodes"] == 4 and ours["nodes"] < 4 and ours["differs"] is None and ours["error"] is None
    assert len(ours["runs_cpu_seconds"]) == 3 and 0 < measured["load_save_cpu_seconds"] < ours["cpu_seconds"]
    assert len(ours["latency_rounds"]) == 5 and ours["latency_ratio"] > 0
    assert (links["nodes"], links["results"][0]["nodes"]) == (1001, 250)
    shown = capsys.readouterr()
    assert "not compared: onnxsim, onnxslim, onnxoptimizer, onnxscript (give --peers-python PATH" in shown.err
    assert shown.out.count("not there") == 4 and "–" in shown.out
    assert not list(tmp_path.glob("*.npz"))


def test_what_an_optimizer_does_wrong_has_its_reason(tmp_path: Path, model: Path) -> None:
    onnx.save(chain(1), tmp_path / "chain.onnx")
    unknown = optimizing.run(Optimizer("nobody", sys.executable), model, tmp_path / "o.onnx", 30)
    assert unknown.error == "exit code 1: KeyError: 'nobody'"
    late = optimizing.run(Optimizer("load+save", sys.executable), model, tmp_path / "o.onnx", 0.01)
    assert late.error == "not done in 0.01 s"
    row = optimizing.row("nobody", [unknown], tmp_path / "o.onnx")
    assert row["error"] and "nodes" not in row
    measured = {
        "model": "m",
        "load_save_cpu_seconds": 1.0,
        "load_save_seconds": 1.0,
        "bytes": 1,
        "latency_seconds": 1.0,
    }
    print_model({**measured, "nodes": 4, "latency_seconds": 1.0, "results": [row]}, ["nobody"])
    print_chain([{"nodes": 9, "load_save_cpu_seconds": 1.0, "results": [row]}], ["nobody"])


def test_a_file_that_freezes_inputs_with_a_default_differs(tmp_path: Path) -> None:
    """As peers fold the state of a training step: it computes the same once, and can no longer train."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x, float[2] v = {1, 2}, float[2] w = {1, 2})
    => (float[2] y) { a = Add (x, v) y = Mul (a, w) }"""
    step, lost, merged = (onnx.parser.parse_model(text) for _ in range(3))
    del lost.graph.input[2]
    merged.graph.node[1].input[1] = "v"
    files = [tmp_path / f"{name}.onnx" for name in ("step", "lost", "merged")]
    for model, path in zip((step, lost, merged), files, strict=True):
        onnx.save(model, path)
    found = latency.differences(files, files[0], latency.inputs_of(files[0], tmp_path, {}, 0), 60)
    assert found[:2] == [None, "it no longer takes w"]
    assert found[2] is not None and found[2].startswith("with other numbers for inputs that have a default, ")


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--optimizers alexnet: no such file; nets: resnet50, .*, nets, chain"):
        bench_optimizers(OptimizersRequest(["alexnet"]))
    with pytest.raises(OptionError, match="no Python that runs"):
        bench_optimizers(OptimizersRequest(["chain"], tmp_path / "python"))
