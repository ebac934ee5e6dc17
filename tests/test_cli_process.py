"""Promise: the command as a process: it starts without loading a framework, and ends with the documented codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from cli_support import interruptible

TEXT = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { a = Identity (x)  y = Relu (a) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def loaded(*arguments: str) -> set[str]:
    """Which frameworks a command has imported when it is done."""
    code = f"""
import sys
from pfvm.tools.cli import run_command
code = run_command({list(arguments)!r})
print("LOADED", code, *[m for m in ("torch", "jax", "onnxruntime", "onnx", "onnx_ir", "numpy") if m in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    words = next(line for line in out.splitlines() if line.startswith("LOADED")).split()
    assert words[1] == "0"
    return set(words[2:])


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_loads_nothing_heavy(flag: str) -> None:
    assert loaded(flag) == set()


def test_commands_load_only_what_they_need(model: Path, tmp_path: Path) -> None:
    assert loaded("devices") & {"torch", "jax", "onnxruntime"} == set()
    assert loaded("passes") & {"torch", "jax", "onnxruntime", "onnx_ir", "numpy"} == set()
    assert loaded("compile", str(model), "-o", str(tmp_path / "o.onnx")) & {"torch", "jax"} == set()
    assert loaded("check", str(model), "--device-b", "pfvm:cpu") & {"torch", "jax"} == set()


def test_python_dash_m(model: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "pfvm", "run", str(model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "float32[2]" in done.stdout
    failed = subprocess.run([sys.executable, "-m", "pfvm", "run", "none.onnx"], capture_output=True, text=True)
    assert failed.returncode == 2
    assert failed.stderr == "error: none.onnx: No such file or directory\n"


def test_a_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pfvm", "ops"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) == 0


def test_view_serves_until_interrupted(model: Path) -> None:
    pytest.importorskip("netron")
    command = [sys.executable, "-m", "pfvm", "view", str(model), "--no-browser"]
    with interruptible(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert line.startswith("http://127.0.0.1:") and "Ctrl-C" in line
    assert (process.returncode, err) == (130, "")
