"""libtpu runs in a process of its own: whatever happens to that, the caller gets an error by name."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("jax")

from pfvm.errors import CompilerCrashError, MissingExtraError, PfvmError
from pfvm.runtime.hardware import tpu_is_here
from pfvm.runtime.xla import tpu_compiler
from tpu_support import compiled, mlp

pytestmark = pytest.mark.tpu


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """Puts another program in the worker's place."""
    pytest.importorskip("libtpu")
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.setattr(tpu_compiler, "__file__", str(folder / "tpu_compiler.py"))
    return lambda text: (folder / "tpu_worker.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import os; print('F0000 chip on fire', flush=True); os.abort()",
            r"ended by signal 6; its last line: F0000 chip",
        ),
        ("raise SystemExit(3)", r"xla:tpu@v5e:1x1: the TPU compiler ended with code 3"),
        ("", "ended with code 0"),
    ],
)
def test_a_compiler_that_dies_is_a_named_error(worker, program: str, message: str) -> None:
    worker(program)
    with pytest.raises(CompilerCrashError, match=message):
        _ = compiled(mlp()).program


def test_a_compiler_that_does_not_end_is_stopped(worker) -> None:
    worker("import time; time.sleep(60)")
    with pytest.raises(CompilerCrashError, match=r"did not end within 0.5 s and was stopped; --effort fast"):
        _ = compiled(mlp(), timeout=0.5).program


def test_what_xla_refuses_is_said_in_a_line(worker) -> None:
    worker(
        "import json, sys\n"
        "reply = {'error': 'X', 'message': 'INTERNAL: no\\nmore'}\n"
        "json.dump(reply, open(sys.argv[1] + '/reply.json', 'w'))"
    )
    with pytest.raises(PfvmError, match=r"xla:tpu@v5e:1x1: XLA could not compile the model: INTERNAL: no$"):
        _ = compiled(mlp()).program


def test_without_libtpu_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "libtpu" else find(name, *rest)
    )
    with pytest.raises(
        MissingExtraError, match=r"device xla:tpu@v5e:1x1 needs the 'tpu' extra: pip install 'pfvm\[tpu\]'$"
    ):
        _ = compiled(mlp()).program


def test_a_process_that_only_runs_on_the_cpu_does_not_load_libtpu() -> None:
    """jax would, to look for TPUs, and print what it misses; 700 MB of library, and one process at a time."""
    pytest.importorskip("libtpu")
    if tpu_is_here():
        pytest.skip("there is a TPU, which jax is to find")
    program = (
        'import numpy, onnx, pfvm; m = onnx.parser.parse_model(\'<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[2] x) => (float[2] y) { y = Exp(x) }')\n"
        "print(pfvm.load(m, device='xla:cpu')({'x': numpy.zeros(2, numpy.float32)})['y'])\n"
        "print('libtpu.so' in open('/proc/self/maps').read())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.split("\n")[:2] == ["[1. 1.]", "False"], done.stderr
    assert done.stderr == ""
