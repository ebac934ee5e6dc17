"""Promise: the examples on files run as their text says, on every device that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(script: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_file_is_compiled_and_runs_on_every_device(tmp_path: Path) -> None:
    shown = run("compile_file.py", "--outdir", tmp_path / "out")
    before, after = map(int, re.findall(r"\d+", shown.splitlines()[0]))
    assert after < before and "fuse-conv: normalized ×2" in shown and "pfvm:cpu: largest difference" in shown
    assert (tmp_path / "out" / "passes.json").exists()
    again = run("compile_file.py", tmp_path / "out" / "pfvm.onnx", "--outdir", tmp_path / "again")
    assert again.startswith(f"{after} → {after} nodes")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
def test_a_net_that_is_only_a_file_is_trained(device: str) -> None:
    if device.startswith("xla"):
        pytest.importorskip("jax")
    shown = run("train_from_onnx.py", "--device", device)
    assert float(shown.rpartition("accuracy ")[2]) > 0.95, shown


@pytest.mark.slow
def test_a_plan_computes_the_same(tmp_path: Path) -> None:
    shown = run("plan.py", "--scheduler", "spill_opt", "--outdir", tmp_path)
    exact, rounded = map(float, re.findall(r"largest difference (\S+)", shown))
    assert exact < 1e-6 < rounded < 1e-2
    assert (tmp_path / "l3ir.txt").exists() and (tmp_path / "report.json").exists()


def test_a_rule_of_ones_own() -> None:
    lines = run("own_rule.py").splitlines()
    assert lines[0] == "Mul ReduceSum Pow"
    assert lines[1] == "own_rule.py: {'square': 1}, refused: {'square: the exponent differs from run to run': 1}"


@pytest.mark.slow
def test_torch_compile_trains_as_eager_does() -> None:
    pytest.importorskip("torch")
    shown = run("torch_backend.py", "--device", "pfvm:cpu")
    eager, compiled = re.findall(r"loss (\S+ → \S+)", shown)
    assert eager == compiled


def test_every_example_is_named_in_the_readme() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    parts = {"mnist_data.py", "mnist_infer.py", "mnist_train.py", "demo.py"}  # of the MNIST example and of `make demo`
    assert [f.name for f in EXAMPLES.glob("*.py") if f.name not in parts and f"examples/{f.name})" not in readme] == []
