"""The cache of compiled programs on disk: reloaded instead of compiled, safe against damage, bounded, and optional."""

from __future__ import annotations

import hashlib
import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest

jax = pytest.importorskip("jax")

from pfvm.runtime.api import load  # noqa: E402
from pfvm.runtime.xla import cache as cache_module  # noqa: E402
from pfvm.runtime.xla.cache import ExecutableCache, configured_cache  # noqa: E402

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x, int64[1] n) => (float[M, K] y) <float[3] w = {1, 2, 3}, int64[1] rest = {-1}> {
  a = Mul(x, w) b = Tanh(a) s = Concat<axis = 0>(n, rest) y = Reshape(b, s)
}
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("PFVM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_MIN_SECONDS", 0.0)
    return tmp_path / "cache"


def run(rows: int = 2):
    exe = load(onnx.parser.parse_model(TEXT), "xla:cpu")
    y = exe({"x": X, "n": np.array([rows])})["y"]
    np.testing.assert_allclose(y, np.tanh(X * [1, 2, 3]).reshape(rows, -1), rtol=1e-6)
    assert exe.compilations == 1 and "f32[" in exe.hlo()[0]
    return exe


def test_a_second_load_reads_what_the_first_compiled(folder: pathlib.Path):
    assert run().reloads == 0
    assert len(list(folder.iterdir())) == 1
    assert run().reloads == 1
    assert run(rows=3).reloads == 0, "another concrete value is another program"
    assert len(list(folder.iterdir())) == 2
    assert folder.stat().st_mode & 0o077 == 0


def test_other_flags_are_other_entries(folder: pathlib.Path):
    run()
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not before)
    try:
        assert run().reloads == 0
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("content", [b"", b"no such thing", "cut", "flipped", "foreign"])
def test_a_damaged_entry_is_ignored_and_rewritten(
    folder: pathlib.Path, content: bytes | str, caplog: pytest.LogCaptureFixture
):
    run()
    (entry,) = folder.iterdir()
    good = entry.read_bytes()
    damaged = {
        "cut": good[: len(good) // 2],
        "flipped": good[:-1] + bytes([good[-1] ^ 1]),
        "foreign": _entry(b"a file with a right checksum that is no executable"),
    }
    entry.write_bytes(content if isinstance(content, bytes) else damaged[content])
    with caplog.at_level(logging.DEBUG, cache_module.__name__):
        assert run().reloads == 0
    assert "ignored" in caplog.text
    assert run().reloads == 1
    assert [path.suffix for path in folder.iterdir()] == [".xla"]


def _entry(payload: bytes) -> bytes:
    return cache_module._MAGIC + hashlib.sha256(payload).digest() + payload


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_an_entry_that_others_may_write_is_ignored(folder: pathlib.Path):
    run()
    (entry,) = folder.iterdir()
    entry.chmod(0o666)
    assert run().reloads == 0


def test_the_oldest_entries_go_first(folder: pathlib.Path):
    run()
    (first,) = folder.iterdir()
    run(rows=3)
    os.utime(first, (1, 1))
    exe = load(onnx.parser.parse_model(TEXT), "xla:cpu")
    exe({"x": X, "n": np.array([6])})
    assert len(list(folder.iterdir())) == 3
    size = sum(path.stat().st_size for path in folder.iterdir())
    ExecutableCache(folder, limit_bytes=size - 1).evict()
    assert not first.exists() and len(list(folder.iterdir())) == 2


def test_off_and_unwritable(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_module, "_MIN_SECONDS", 0.0)
    monkeypatch.setenv("PFVM_CACHE", "off")
    assert configured_cache() is None
    run()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFVM_CACHE", str(tmp_path / "file" / "below"))
    assert run().reloads == 0
    monkeypatch.delenv("PFVM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert configured_cache().folder == tmp_path / "xdg" / "pfvm"


def test_what_compiles_quickly_is_not_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PFVM_CACHE", str(tmp_path))
    monkeypatch.setattr(cache_module, "_MIN_SECONDS", 1e9)
    run()
    assert not list(tmp_path.iterdir())


def test_another_process_reloads(folder: pathlib.Path):
    run()
    code = (
        "import numpy as np, onnx, sys\nfrom pfvm.runtime.api import load\n"
        "exe = load(onnx.parser.parse_model(sys.argv[1]), 'xla:cpu')\n"
        "exe({'x': np.arange(6, dtype=np.float32).reshape(2, 3), 'n': np.array([2])})\nprint(exe.reloads)"
    )
    done = subprocess.run([sys.executable, "-c", code, TEXT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
