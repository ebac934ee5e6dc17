"""Promise: the programs of the first PyTorch/XLA release compute what PyTorch does, on each device and on replicas."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

EXAMPLE = pathlib.Path(__file__).parent.parent / "examples" / "resnet50.py"
SMALL = ["--blocks", "1,1,1,1", "--size", "32", "--steps", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--device", "pfvm:cpu"], ["product", "mnist train", "resnet50 inference", "resnet50 train"]),
        (["--device", "xla:cpu"], ["product", "mnist train", "resnet50 inference", "resnet50 train"]),
        (["mnist", "--device", "xla:cpu", "--mesh", "data=2"], ["mnist train"]),
    ],
)
def test_results_are_those_of_pytorch(options: list[str], names: list[str]) -> None:
    command = [sys.executable, str(EXAMPLE), *options, *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(.+) on (?:xla|pfvm):cpu.*largest difference (\S+);", done.stdout, re.M)
    assert [name for name, _ in found] == names
    assert all(float(difference) < 1e-3 for _, difference in found), done.stdout
