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
        (
            ["--device", "xla:cpu", "--mesh", "data=2"],
            ["product", "mnist train", "resnet50 inference", "resnet50 train"],
        ),
    ],
)
def test_results_are_those_of_pytorch(options: list[str], names: list[str]) -> None:
    command = [sys.executable, str(EXAMPLE), *options, *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(.+) on (?:xla|pfvm):cpu.*largest difference (\S+);", done.stdout, re.M)
    assert [name for name, _ in found] == names
    assert all(float(difference) < 1e-3 for _, difference in found), done.stdout


@pytest.mark.slow
@pytest.mark.tpu
def test_each_is_compiled_for_a_tpu_that_is_not_here(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("libtpu")
    device = "xla:tpu@v5e:1x1"
    options = ["--device", device, "--effort", "fast", "--outdir", str(tmp_path), *SMALL]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["product", "mnist-train", "resnet50-inference", "resnet50-train"]
    assert re.findall(rf"^(.+) on {device}:", done.stdout, re.M) == [name.replace("-", " ") for name in names]
    assert all((tmp_path / name / "executable.bin").stat().st_size for name in names)
