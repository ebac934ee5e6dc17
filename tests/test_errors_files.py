"""Promise: whatever is wrong with a file, a call or the disk is one clear line and exit code 2; nothing half-written.

Every test looks at the whole folder afterwards: no temporary file, and an output that was there before is untouched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_support import interruptible
from onnx import TensorProto, numpy_helper
from pfvm.tools import cli, npz

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n,3] x, int64[n] k) => (float[n,3] y) <float[3] w = {1,2,3}>
{ [first] a = Identity (x)  [second] y = Mul (a, w) }"""
OLD = b"what was here before"


class Workplace:
    """A folder, the command run in it, and what it may leave behind."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.output = folder / "out.onnx"
        self.output.write_bytes(OLD)

    def save(self, text: str = TEXT, name: str = "in.onnx") -> Path:
        onnx.save(onnx.parser.parse_model(text), self.folder / name)
        return self.folder / name

    def error(self, *arguments: object) -> str:
        """Runs a command that must fail; returns its one line."""
        before = snapshot(self.folder)
        code = cli.run_command([str(a) for a in arguments])
        captured = self.capsys.readouterr()
        assert code == 2, (code, captured)
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        assert snapshot(self.folder) == before
        return captured.err

    def compile_error(self, source: Path) -> str:
        return self.error("compile", source, "-o", self.output)

    def both_errors(self, source: Path) -> str:
        """`compile` and `run` say the same."""
        message = self.compile_error(source)
        assert self.error("run", source) == message
        return message


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Workplace:
    return Workplace(tmp_path, capsys)


# ---- files that are no model


@pytest.mark.parametrize("keep", [1, 10, 60, -1], ids=lambda k: f"cut{k}")
def test_truncated_file(here: Workplace, keep: int) -> None:
    source = here.save()
    source.write_bytes(source.read_bytes()[:keep])
    message = here.both_errors(source)
    assert "in.onnx" in message
    assert "not an ONNX model" in message


PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + bytes(30)


@pytest.mark.parametrize("content", [PNG, b"", b"hello, world\n", b"{}", bytes(100), b"\x08\x0a"])
@pytest.mark.parametrize("name", ["in.onnx", "in"])
def test_foreign_file(here: Workplace, content: bytes, name: str) -> None:
    source = here.folder / name
    source.write_bytes(content)
    assert "not an ONNX model" in here.both_errors(source)


@pytest.mark.parametrize("name", ["in.json", "in.onnxtxt", "in.textproto"])
def test_foreign_text_file(here: Workplace, name: str) -> None:
    source = here.folder / name
    source.write_text("hello, world\nand more\n")
    assert "not an ONNX model" in here.both_errors(source)


def test_a_python_file_is_told_of_export(here: Workplace) -> None:
    source = here.folder / "net.py"
    source.write_text("import torch\n")
    assert "not an ONNX model" in here.both_errors(source) and "`pfvm export`" in here.both_errors(source)
    assert "`pfvm export`" in here.both_errors(here.folder / "net.py:predict")


def test_missing_file_and_folder_for_a_file(here: Workplace) -> None:
    assert "No such file or directory" in here.both_errors(here.folder / "none.onnx")
    assert "Is a directory" in here.compile_error(here.folder)
    assert "is a folder, and no portable program: it has no manifest.json" in here.error("run", here.folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(here: Workplace) -> None:
    source = here.save()
    source.chmod(0)
    assert "Permission denied" in here.both_errors(source)


# ---- external data


def external(here: Workplace, location: str, length: int | None = None) -> Path:
    """A model whose weight of 40 bytes lies in `location`."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[10] x) => (float[10] y) { y = Add (x, w) }'
    )
    weight = numpy_helper.from_array(np.arange(10, dtype=np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", length)):
        if value is not None:
            weight.external_data.add(key=key, value=str(value))
    proto.graph.initializer.append(weight)
    path = here.folder / "in.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_missing_external_data(here: Workplace) -> None:
    message = here.both_errors(external(here, "weights.bin", 40))
    assert "initializer 'w'" in message
    assert "weights.bin" in message
    assert "does not exist" in message


def test_external_data_that_is_too_short(here: Workplace) -> None:
    (here.folder / "weights.bin").write_bytes(bytes(39))
    message = here.both_errors(external(here, "weights.bin", 40))
    assert "has 39 bytes, 40 are needed" in message
    (here.folder / "weights.bin").write_bytes(bytes(39))
    assert "39 bytes" in here.both_errors(external(here, "weights.bin"))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "a/../../secret.bin"])
def test_external_data_outside_the_folder(here: Workplace, location: str, tmp_path: Path) -> None:
    inner = Workplace(tmp_path / "inner", here.capsys) if (tmp_path / "inner").mkdir() is None else here
    (tmp_path / "secret.bin").write_bytes(bytes(40))
    message = inner.both_errors(external(inner, location, 40))
    assert "initializer 'w'" in message
    assert "outside the model's folder" in message


def test_external_data_through_a_link_that_leaves_the_folder(here: Workplace, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    inner = Workplace(tmp_path / "inner", here.capsys)
    (tmp_path / "secret.bin").write_bytes(bytes(40))
    (inner.folder / "weights.bin").symlink_to(tmp_path / "secret.bin")
    assert "outside the model's folder" in inner.both_errors(external(inner, "weights.bin", 40))


# ---- operators and opsets


def test_unknown_operator(here: Workplace) -> None:
    message = here.both_errors(here.save(TEXT.replace("Mul (a, w)", "Frobnicate (a, w)")))
    assert "'second'" in message
    assert "no operator 'Frobnicate'" in message


def test_unknown_opset(here: Workplace) -> None:
    message = here.both_errors(here.save(TEXT.replace('"" : 21', '"" : 99')))
    assert "opset 99" in message
    assert f"1 to {onnx.defs.onnx_opset_version()}" in message
    assert "--opset" in here.error("compile", here.save(), "-o", here.output, "--opset", "99")


def test_unknown_domain_passes_through_compile_and_is_named_at_run(here: Workplace) -> None:
    source = here.save(
        """<ir_version: 10, opset_import: ["" : 21, "my.ops" : 3]>
        g (float[2] x) => (float[2] y)
        { a = Identity (x)  [mine] y = my.ops.Foo <gain: float = 2.0, label = "q"> (a, ) }"""
    )
    assert cli.run_command(["compile", str(source), "-o", str(here.output)]) == 0
    here.capsys.readouterr()
    compiled = onnx.load(here.output)
    original = next(n for n in onnx.load(source).graph.node if n.domain)
    (kept,) = compiled.graph.node
    original.input[0] = "x"
    assert kept.SerializeToString(deterministic=True) == original.SerializeToString(deterministic=True)
    assert {o.domain: o.version for o in compiled.opset_import} == {"": 21, "my.ops": 3}
    message = here.error("run", source)
    assert "my.ops::Foo 'mine'" in message
    assert "--custom-ops-lib" in message


# ---- calls


def feeds(here: Workplace, **arrays: np.ndarray) -> Path:
    np.savez(here.folder / "in.npz", **arrays)  # type: ignore[arg-type]
    return here.folder / "in.npz"


@pytest.mark.parametrize(
    ("x", "k", "expected"),
    [
        (np.zeros((2, 3)), np.zeros(2, np.int64), "input 'x': expected dtype float32, got float64"),
        (np.zeros((2, 4), np.float32), np.zeros(2, np.int64), "input 'x': dim 1 must be 3"),
        (np.zeros(3, np.float32), np.zeros(2, np.int64), "input 'x': expected rank 2"),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.int64), "input 'k': dim 0 ('n') is 3, but input 'x' has 'n' = 2"),
        (np.zeros((2, 3), np.float32), None, "missing input 'k' (int64[n])"),
    ],
)
@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
def test_inputs_that_do_not_fit(
    here: Workplace, device: str, x: np.ndarray, k: np.ndarray | None, expected: str
) -> None:
    if device == "xla:cpu":
        pytest.importorskip("jax")
    given = {"x": x} if k is None else {"x": x, "k": k}
    assert expected in here.error("run", here.save(), "--device", device, "--inputs", feeds(here, **given))


def test_unknown_input(here: Workplace) -> None:
    path = feeds(here, x=np.zeros((2, 3), np.float32), k=np.zeros(2, np.int64), extra=np.zeros(1))
    assert "unknown input 'extra': the model's inputs are 'x', 'k'" in here.error("run", here.save(), "--inputs", path)


# ---- disks


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes: writes stop half way as on a full disk, in whatever way they are made."""
    resource = pytest.importorskip("resource", reason="no limits of resources here")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("flags", [(), ("--external-data",), ("--safetensors",)], ids=" ".join)
def test_write_that_fails_half_way(here: Workplace, flags: tuple[str, ...]) -> None:
    """In the file of the weights, or in that of the model after it: both outputs that were there before stay."""
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[900] x) => (float[900] y) { y = Add (x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(900, dtype=np.float32), "w"))
    proto.graph.doc_string = "d" * 8000
    onnx.save(proto, here.folder / "in.onnx")
    for suffix in ("data", "safetensors"):
        (here.folder / f"out.onnx.{suffix}").write_bytes(OLD)
    for size in (100, 2000, 5000):  # 3,600 bytes of weights
        with files_up_to(size):
            message = here.error("compile", here.folder / "in.onnx", "-o", here.output, *flags)
        assert f"cannot write {here.output}: File too large" in message


def test_artifacts_that_fail_half_way(here: Workplace) -> None:
    source, folder = here.save(), here.folder / "out"
    folder.mkdir()
    for name in ("model.onnx", "pfvm.onnx", "passes.json"):
        (folder / name).write_bytes(OLD)
    with files_up_to(100):
        assert "cannot write" in here.error("compile", source, "--artifacts", folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_while_saving_outputs(here: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        npz, "open", lambda path, mode: os.fdopen(os.open("/dev/full", os.O_WRONLY), mode), raising=False
    )
    message = here.error("run", here.save(), "--outputs", here.folder / "out.npz")
    assert "No space left on device" in message
    assert "out.npz" in message


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root mounts a file system")
def test_a_really_full_disk(here: Workplace) -> None:
    """A file system of 16 KiB, and a model of 400 KB."""
    disk = here.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        output = disk / "out.onnx"
        output.write_bytes(OLD)
        proto = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21]> g (float[100000] x) => (float[100000] y) { y = Add (x, w) }'
        )
        proto.graph.initializer.append(numpy_helper.from_array(np.arange(100000, dtype=np.float32), "w"))
        onnx.save(proto, here.folder / "in.onnx")
        for flags in ([], ["--external-data"]):
            message = here.error("compile", here.folder / "in.onnx", "-o", output, *flags)
            assert f"cannot write {output}: No space left on device" in message
        message = here.error("run", here.folder / "in.onnx", "--outputs", disk / "out.npz")
        assert "No space left on device" in message
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_output_directory_missing(here: Workplace) -> None:
    message = here.error("compile", here.save(), "-o", here.folder / "nowhere" / "out.onnx")
    assert "No such file or directory" in message
    assert "nowhere" in message
    message = here.error("run", here.save(), "--outputs", here.folder / "nowhere" / "out.npz")
    assert "nowhere" in message


def test_output_that_is_a_directory(here: Workplace) -> None:
    (here.folder / "taken").mkdir()
    assert "taken" in here.error("compile", here.save(), "-o", here.folder / "taken")


def test_artifacts_directory_that_is_a_file(here: Workplace) -> None:
    assert "out.onnx" in here.error("compile", here.save(), "--artifacts", here.output)


def test_an_output_may_be_its_own_source(here: Workplace) -> None:
    """Compiling in place works: the source is read before it is replaced."""
    source = here.save()
    assert cli.run_command(["compile", str(source), "-o", str(source)]) == 0
    assert [n.op_type for n in onnx.load(source).graph.node] == ["Mul"]


# ---- Ctrl-C

_SLOW = """
import sys, time

def hook(event, arguments):
    if event == {event!r} and {path} == "out.onnx":
        print("writing", flush=True)
        {wait}

from pfvm.tools.cli import main
sys.addaudithook(hook)
main()
"""
_MOMENTS = {
    "opened": ("open", 'arguments[1] and str(arguments[0]).rpartition("/")[2]'),
    "moved": ("os.rename", 'str(arguments[1]).rpartition("/")[2]'),
}
"""Python's own audit events, whoever writes: the model's file is about to be made, and to be moved into place."""


def _interrupted(folder: Path, script: str, arguments: list[str], ready: Callable[[str], bool]) -> tuple[int, str]:
    with interruptible([sys.executable, "-c", script, *arguments], cwd=folder) as process:
        assert process.stdout is not None
        assert ready(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("wait", ["time.sleep(60)", "any(0 for _ in iter(int, 1))"], ids=["waiting", "busy"])
def test_interruption_while_writing_leaves_nothing(here: Workplace, wait: str, moment: str) -> None:
    here.save()
    before = snapshot(here.folder)
    event, path = _MOMENTS[moment]
    script = _SLOW.format(wait=wait, event=event, path=path)
    arguments = ["compile", "in.onnx", "-o", "out.onnx"]
    start = time.monotonic()
    code, err = _interrupted(here.folder, script, arguments, lambda line: line == "writing\n")
    assert (code, err) == (130, "")
    assert time.monotonic() - start < 50
    assert snapshot(here.folder) == before
    assert not [p for p in here.folder.iterdir() if p.is_dir()]
