"""Models that nobody here wrote: compiled, they are valid, equal and stable. Needs ../shared beside the repository."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.runtime.ort import OrtExecutable
from pfvm.tools import recompile
from support import SHARED, inputs_of, recipes

MODELS = sorted((SHARED / "models").glob("*.onnx"))

if not MODELS:
    pytest.skip("needs the test models in ../shared", allow_module_level=True)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_real_model_compiles_and_is_equal_on_onnx_runtime(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    manifest = json.loads((SHARED / "models" / "manifest.json").read_text())[path.name]
    pfvm.optimize(path, output=tmp_path / "pfvm.onnx")
    original, compiled = OrtExecutable(path, optimize=False), pfvm.load(tmp_path / "pfvm.onnx", device="pfvm:cpu")
    assert len(onnx.load(tmp_path / "pfvm.onnx").graph.node) <= len(onnx.load(path).graph.node)
    for recipe in recipes(path):
        feeds = inputs_of(path, recipe)
        results = compiled(feeds)
        for name, expected in original(feeds).items():
            scale = max(1.0, float(np.abs(expected).max())) if expected.size else 1.0
            # Quantized models may move by a step of their quantization.
            atol = (1e-2 if manifest["quantized"] else 1e-5) * scale
            np.testing.assert_allclose(results[name], expected, rtol=1e-3, atol=atol, err_msg=name)


@pytest.mark.slow
def test_the_corpus_is_compiled_without_a_fault(tmp_path: pathlib.Path) -> None:
    """The outside judge looks for crashes, time-outs, wrong numbers, invalid files and changed signatures."""
    report = tmp_path / "report.json"
    tool = pathlib.Path(__file__).with_name("optimize_file.py")
    command = [
        *(sys.executable, SHARED / "harness" / "corpus_check.py", SHARED / "corpus", "--name", "pfvm", "-j", "1"),
        *("--py", f"{tool}:optimize_file", "--json", report, "--outdir", tmp_path / "out"),
    ]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, cwd=tmp_path)
    results = json.loads(report.read_text())["results"]
    faults = {path: r for path, r in results.items() if r["status"] not in ("ok", "error")}
    refused = {path: r["detail"] for path, r in results.items() if r["status"] == "error"}
    assert faults == {} and len(refused) <= 2
    assert all(text.startswith("InvalidModelError: the model cannot be represented") for text in refused.values())


@pytest.mark.slow
def test_the_corpus_is_compiled_to_the_same_bytes_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert recompile.main([str(SHARED / "corpus"), str(SHARED / "models")]) == 0, capsys.readouterr().out
