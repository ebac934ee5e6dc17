"""After a compilation, a table says what changed and what each pass did."""

from __future__ import annotations

import io
import json
import pathlib
import re

import onnx
import pytest
from cli_support import Pfvm
from pfvm.compiler.driver import CompileResult
from pfvm.compiler.options import parse
from pfvm.runtime.api import compile_source
from pfvm.tools.summary import CompiledTable, flops_json, flops_of, per_pass
from rich.console import Console
from support import model

PRODUCT = """agraph (float[N,8] x, float[8,4] w, float[4] c) => (float[N,4] y) {
    h = MatMul(x, w) a = Add(h, c) b = Identity(a) k = Neg(b) l = Neg(k) y = Relu(l) }"""


def compiled(**options: object) -> CompileResult:
    return compile_source(model(PRODUCT), parse(options))


def shown(result: CompileResult, width: int = 100, **settings: object) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **settings).print(CompiledTable(result))  # type: ignore[arg-type]
    return file.getvalue()


def test_nodes_bytes_and_operations_before_and_after() -> None:
    text = shown(compiled())
    assert re.search(r"nodes +6 +2 +-67%", text)
    assert re.search(r"bytes +0 B +0 B", text)
    assert re.search(r"flops \(N=1\) +80 +72 +-10%", text)


def test_operations_that_only_data_decide_are_not_compared() -> None:
    text = """agraph (float[N,4] x, bool[N] keep) => (float[a,b] y) {
        e = Exp(x) k = Compress <axis = 0> (e, keep) a = Neg(k) b = Neg(a) y = Exp(b) }"""
    result = compile_source(model(text), parse({}))
    assert re.search(r"flops +depends on data +depends on data *\n", shown(result))
    assert flops_json(result) == {"flops": None, "flops_at": {}}


def test_each_pass_with_its_matches_nodes_and_seconds() -> None:
    text = shown(compiled())
    assert re.search(r"fuse-matmul-bias +1 +-1 +\d+\.\d{3}", text)
    assert re.search(r"simplify-algebra +1 +-2 +\d+\.\d{3}", text)
    assert re.search(r"\d+ without a match +\d+\.\d{3}", text)
    assert re.search(r"in all +3 +-4 +\d+\.\d{3}", text)
    assert "difference" not in text


def test_verify_adds_the_largest_difference_of_each_pass() -> None:
    result = compiled(verify=True)
    assert re.search(r"fuse-matmul-bias +1 +-1 +\d+\.\d{3} +(0|\d\.\de-\d\d)\s", shown(result))
    for each in per_pass(result.passes):
        found = [run.max_difference for run in result.passes if run.name == each.name and run.changed]
        assert each.difference == (max(found) if found else None)


def test_rounds_of_a_pass_are_one_row() -> None:
    result = compiled()
    rows = per_pass(result.passes)
    assert len(rows) == len({run.name for run in result.passes}) < len(result.passes)
    assert sum(row.nodes for row in rows) == -4
    assert sum(row.seconds for row in rows) == pytest.approx(result.summary()["seconds"])


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_is_kept_to(width: int) -> None:
    assert max(map(len, shown(compiled(verify=True), width).splitlines())) <= width


def test_colours_are_for_terminals() -> None:
    assert "\x1b[" not in shown(compiled())
    assert "\x1b[" in shown(compiled(), force_terminal=True, color_system="standard")


def test_without_passes_there_is_no_table() -> None:
    assert shown(compiled(opt_level=0)) == ""


def test_operations_of_large_models_are_left_to_stats() -> None:
    nodes = [onnx.helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(10_001)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in ("v0", "v10001")]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    result = compile_source(proto, parse({"opt_level": 0, "passes": ["infer-shapes"]}))
    assert flops_of(result.original) is None and "flops" not in shown(result)


def test_the_command_prints_it_on_stderr_and_not_with_quiet(
    pfvm: Pfvm, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    result = pfvm("compile", model, "-o", tmp_path / "a.onnx")
    assert result.out == "" and "3 → 1 nodes" in result.err.splitlines()[0]
    assert re.search(r"eliminate-identity +1 +-1", result.err)
    assert pfvm("--quiet", "compile", model, "-o", tmp_path / "a.onnx") == (0, "", "")


def test_json_has_it_too(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    onnx.save(model(PRODUCT), tmp_path / "m.onnx")
    told = json.loads(pfvm("compile", tmp_path / "m.onnx", "-o", tmp_path / "a.onnx", "--json").out)
    assert (told["nodes"], told["flops"], told["flops_at"]) == ([6, 2], [80, 72], {"N": 1})
