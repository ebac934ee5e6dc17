"""Promise: VGG-19 of a batch of 100 is one executable for a TPU, and computes here what PyTorch computes."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest
from pfvm.compiler.plan.text import parse_l3ir

pytest.importorskip("torch")
pytest.importorskip("jax")

SCRIPT = pathlib.Path(__file__).parent.parent / "examples" / "vgg19.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("backward", [[], ["--backward"]], ids=["forward", "backward"])
def test_the_numbers_of_pytorch(backward: list[str]) -> None:
    printed = run("--device", "xla:cpu", "--batch", "2", "--size", "32", *backward)
    (apart,) = re.findall(r"largest difference (\S+) of the largest number", printed)
    assert float(apart) < 2e-5, printed


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("chip", ["v2", "v5e"])
def test_one_executable_for_a_tpu(chip: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("libtpu")
    printed = run("--device", f"xla:tpu@{chip}:1x1", "--effort", "fast", "--outdir", str(tmp_path))
    assert "1 executable" in printed
    report = json.loads((tmp_path / "forward" / "report.json").read_text())
    assert report["cycles_missing"] is None
    assert report["least_time_us"] < report["time_us"]
    assert report["peak_memory"]["HBM"]["bytes_per_cell"] < report["peak_memory"]["HBM"]["size_per_cell"]
    nodes = parse_l3ir((tmp_path / "forward" / "l3ir.txt").read_text())
    stated = sum(int(flag[7:]) for node in nodes for flag in node.flags if flag.startswith("cycles="))
    assert stated == report["modelled_cycles"]
