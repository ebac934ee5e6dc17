"""Promise: an unlucky command line is one line that says so: no traceback, no file lost, no JSON that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_support import Pfvm, one_line

LONG = "a" * 300


@pytest.mark.parametrize(
    "command",
    [
        ("view", LONG, "--no-browser"),
        ("run", LONG),
        ("l3ir", "show", LONG),
        ("export", f"{LONG}:f", "-o", "o.onnx"),
        ("compile", "model.onnx", "-o", LONG),
        ("compile", "model.onnx", "--rules", LONG, "-o", "o.onnx"),
    ],
    ids=" ".join,
)
def test_a_name_too_long_for_the_file_system(
    command: tuple[str, ...], pfvm: Pfvm, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    assert "File name too long" in one_line(pfvm(*command))


@pytest.mark.parametrize("arguments", [("-o", ""), ("--output=",), ("--artifacts", "")], ids=" ".join)
def test_an_empty_argument_is_not_the_current_directory(arguments: tuple[str, ...], pfvm: Pfvm, model: Path) -> None:
    assert f"after '{arguments[0].rstrip('=')}'" in one_line(pfvm("compile", model, *arguments))


def test_a_folder_is_no_output(pfvm: Pfvm, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    for flag in (("compile", model, "-o"), ("run", model, "--outputs"), ("view", model, "--export")):
        for folder in (".", "/", ".."):
            assert f"cannot write {folder}: " in one_line(pfvm(*flag, folder))


def test_what_is_read_is_not_overwritten(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    code, inputs = tmp_path / "net.py", tmp_path / "in.npz"
    code.write_text("sample = f = None\n")
    np.savez(inputs, x=np.zeros((2, 3), np.float32))
    before = {file: file.read_bytes() for file in (model, code, inputs)}
    for command in (
        ("view", model, "--export", model),
        ("run", model, "--outputs", model),
        ("run", model, "--inputs", inputs, "--outputs", inputs),
        ("export", f"{code}:f", "-o", code),
        ("compile", model, "--rules", code, "-o", code),
    ):
        assert "would be lost" in one_line(pfvm(*command))
    assert before == {file: file.read_bytes() for file in before}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_device_or_pipe_is_written_to_and_stays(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for command in (("compile", model, "-o"), ("run", model, "--outputs")):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        assert pfvm(*command, pipe).code == 0
        assert os.read(reader, 100) and pipe.is_fifo()
        os.close(reader)
    assert "must lie beside it" in one_line(pfvm("compile", model, "--safetensors", "-o", pipe))


def test_a_negative_seed_is_a_usage_error(pfvm: Pfvm, model: Path) -> None:
    for command in (("run", model), ("check", model, model), ("bisect", model), ("plan", model, "-o", "plan")):
        assert "--seed" in one_line(pfvm(*command, "--seed", "-1"))


def test_infinity_is_null_in_json(pfvm: Pfvm, model: Path) -> None:
    assert json.loads(pfvm("check", model, model, "--rtol", "inf", "--json").out)["tolerance"]["rtol"] is None


def test_json_is_all_that_stdout_gets(pfvm: Pfvm, model: Path) -> None:
    for device in ("pfvm:cpu", "xla:cpu"):
        found = json.loads(pfvm("compile", model, "--device", device, "--explain", "--json").out)["segments"]
        assert [(each["place"], len(each["nodes"]), each["reasons"]) for each in found] == [("device", 1, [])]


def test_what_a_user_s_file_raises_is_an_error_at_its_line(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def f(x):\n    return x\n\ndef bad():\n    return {}[1]\n")
    command = ("export", f"{tmp_path}/net.py:f", "-o", tmp_path / "o.onnx", "--sample")
    assert "net.py:5: KeyError: 1" in one_line(pfvm(*command, "bad"))
    assert "net.py: TypeError: f() missing" in one_line(pfvm(*command, "f"))


def test_what_no_machine_has_is_refused(pfvm: Pfvm, model: Path) -> None:
    assert "threads must be at most" in one_line(pfvm("run", model, "--threads", 10**8))
    (model.parent / "m.toml").write_bytes(b"\xff")
    message = one_line(
        pfvm("plan", model, "-o", model.parent / "p", "--machine", model.parent / "m.toml", "--shape", "x=1,3")
    )
    assert "m.toml: UnicodeDecodeError" in message


@pytest.mark.parametrize("name", ["file", "allow_pickle", "a.npy", "../x"])
def test_outputs_of_any_name_are_stored(name: str, pfvm: Pfvm, tmp_path: Path) -> None:
    net = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    )
    net.graph.output[0].name = net.graph.node[0].output[0] = name
    onnx.save(net, tmp_path / "m.onnx")
    assert pfvm("run", tmp_path / "m.onnx", "--outputs", tmp_path / "out.npz").code == 0
    with np.load(tmp_path / "out.npz") as stored:
        assert stored.files == [name] and stored[name].shape == (2,)


def process(*arguments: str, out: str | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, its output to this file or a pipe."""
    target = subprocess.PIPE if out is None else os.open(out, os.O_WRONLY)
    command = [sys.executable, "-m", "pfvm", *arguments]
    try:
        return subprocess.run(
            command, stdout=target, stderr=subprocess.PIPE, env={**os.environ, **environment}, timeout=60
        )
    finally:
        if out is not None:
            os.close(target)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [("--version",), ("passes", "--json"), ("devices",)], ids=" ".join)
def test_a_full_disk_is_an_error(flags: tuple[str, ...]) -> None:
    done = process(*flags, out="/dev/full")
    assert (done.returncode, done.stderr) == (2, b"error: cannot write the output: No space left on device\n")


def test_a_terminal_without_unicode() -> None:
    text = process("passes", PYTHONIOENCODING="ascii")
    assert (text.returncode, text.stderr) == (0, b"") and b"\\u" in text.stdout
    assert json.loads(process("passes", "--json", PYTHONIOENCODING="ascii").stdout)


def test_json_of_a_file_name_that_is_no_text(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff.onnx")
    odd.write_bytes(model.read_bytes())
    assert json.loads(pfvm("stats", odd, "--json").out)
    assert json.loads(pfvm("compile", odd, "-o", odd, "--json").out)["written"] == [str(odd)]
