"""`pfvm view`: Netron on model files, or on the stages that an artifacts directory holds."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pfvm.errors import MissingExtraError, OptionError, PfvmError

# The stages of an artifacts directory, in the order in which the compiler writes them.
STAGES = ("model.onnx", "pfvm.onnx", "l3ir_stripped.onnx.zst")


def view(paths: Sequence[Path], browser: bool) -> None:
    """Serves every file on 127.0.0.1 at a free port and prints the addresses; returns when interrupted.

    Raises OptionError for a path that has nothing to show, MissingExtraError without netron.
    """
    files = [file for path in paths for file in stages(path)]
    with serve(files, browser) as addresses:
        for file, address in zip(files, addresses):
            print(f"{file}  {address}", flush=True)
        print("Ctrl-C ends it", flush=True)
        while True:
            time.sleep(3600)


def stages(path: Path) -> list[Path]:
    """The file itself, or the stages in a directory."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise OptionError(f"{path}: no such file or directory")
    found = [path / name for name in STAGES if (path / name).is_file()] or sorted(path.glob("*.onnx"))
    if not found:
        raise OptionError(f"{path}: no .onnx file in this directory")
    return found


@contextlib.contextmanager
def serve(files: Iterable[Path], browser: bool) -> Iterator[list[str]]:
    """Within the block one Netron process per file runs; gives their addresses."""
    if importlib.util.find_spec("netron") is None:
        raise MissingExtraError("pfvm view", "view")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pfvm-view-")))
        plain = [unpacked(file, folder / str(number)) for number, file in enumerate(files)]
        servers = [(file, stack.enter_context(_server(file, browser))) for file in plain]
        yield [_address(file, server) for file, server in servers]


def unpacked(file: Path, folder: Path) -> Path:
    """The file itself, or what a .zst holds, written into a folder. Raises PfvmError where it is broken."""
    if file.suffix != ".zst":
        return file
    import zstandard

    folder.mkdir()
    try:
        content = zstandard.ZstdDecompressor().decompress(file.read_bytes())
    except zstandard.ZstdError as error:
        raise PfvmError(f"{file}: not compressed by zstd: {error}") from error
    (folder / file.stem).write_bytes(content)
    return folder / file.stem


@contextlib.contextmanager
def _server(file: Path, browser: bool) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pfvm.tools.netron_server", str(file), *(["--browse"] if browser else [])]
    # A session of its own: Ctrl-C is for this process, and the server ends when its standard input is closed.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            yield server
        finally:
            server.terminate()


def _address(file: Path, server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    if not address:
        raise PfvmError(f"{file}: Netron does not start; `netron {file}` says why")
    return address
