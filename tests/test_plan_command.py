"""Promise: `pfvm plan` writes the files of a plan, says in one line what it planned, and names what it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from cli_support import Pfvm, one_line
from support import model

TEXT = """<ir_version: 10, opset_import: ["" : 20]> g (float[N,64] x) => (float[N,10] y) {
  w = Constant<value = float[10,64] {WEIGHTS}>() y = Gemm<transB = 1>(x, w)
}"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    weights = ",".join("0.5" for _ in range(640))
    onnx.save(model(TEXT.replace("WEIGHTS", weights)), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_the_files_and_the_line(pfvm: Pfvm, net: Path, tmp_path: Path) -> None:
    result = pfvm("plan", net, "--shape", "x=32,64", "-o", tmp_path / "plan", "--scheduler", "spill_opt")
    assert (result.code, result.out) == (0, "")
    assert "cycles by the cost model" in result.err and "spill_opt" in result.err
    written = {path.name for path in (tmp_path / "plan").iterdir()}
    assert {"l3ir.txt", "report.json", "trace.json", "l3ir_stripped.onnx.zst", "l3ir_index.json"} <= written
    report = json.loads((tmp_path / "plan" / "report.json").read_text())
    assert report["flops"] == 32 * 10 * 64 * 2
    assert report["options"]["shapes"] == {"x": [32, 64]}
    assert "Gemm(x_Download_0, w, transB)" in (tmp_path / "plan" / "l3ir.txt").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "input 'x' has the shape"),
        (("--shape", "x=32,64", "--scheduler", "best"), "--scheduler"),
        (("--shape", "x=32,64", "--machine", "mncore"), "no machine 'mncore'; did you mean 'mncore2'?"),
        (("--shape", "x=32,64", "--float-dtype", "double"), "--float-dtype"),
        (("--shape", "x=32,64", "--dtype", "Gemm"), "expected NODE=DTYPE"),
        (("--shape", "x=32,64", "--search-steps", "-1"), "--search-steps"),
    ],
)
def test_errors_write_nothing(pfvm: Pfvm, net: Path, tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    result = pfvm("plan", net, "-o", tmp_path / "plan", *flags)
    assert result.code == 2
    assert message in one_line(result)
    assert not (tmp_path / "plan").exists()
