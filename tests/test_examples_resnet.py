"""Promise: the programs of the first PyTorch/XLA release compute what PyTorch does, on each device and on replicas."""

from __future__ import annotations

import json
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
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--device", "xla:tpu@v5e:1x1"], ["product", "mnist-train", "resnet50-inference", "resnet50-train"]),
        (["product", "mnist", "--device", "xla:tpu@v5e:2x2", "--mesh", "data=4"], ["product", "mnist-train"]),
    ],
)
def test_each_is_compiled_for_tpus_that_are_not_here(
    options: list[str], names: list[str], tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("libtpu")
    command = [sys.executable, str(EXAMPLE), *options, "--effort", "fast", "--outdir", str(tmp_path), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(.+) on xla:tpu@", done.stdout, re.M) == [name.replace("-", " ") for name in names]
    assert all((tmp_path / name / "executable.bin").stat().st_size for name in names)
    for name in names:
        collectives = json.loads((tmp_path / name / "report.json").read_text()).get("collectives", {"list": []})
        is_split = "--mesh" in options and "train" in name
        assert ("all-reduce" in {each["kind"] for each in collectives["list"]}) == is_split, name  # of the gradients
