"""`pfvm view`: Netron on model files, or on the stages that an artifacts directory holds."""

from __future__ import annotations

import contextlib
import io
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pfvm.errors import MissingExtraError, OptionError

# The stages of an artifacts directory, in the order in which the compiler writes them.
STAGES = ("model.onnx", "pfvm.onnx", "l3ir_stripped.onnx")
_HOST = "127.0.0.1"


def view(paths: Sequence[Path], browser: bool) -> None:
    """Serves every file on 127.0.0.1 at a free port and prints the addresses; returns when interrupted.

    Raises OptionError for a path that has nothing to show, MissingExtraError without netron.
    """
    files = [file for path in paths for file in stages(path)]
    addresses = serve(files, browser)
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


def serve(files: Iterable[Path], browser: bool) -> list[str]:
    """Starts one Netron server per file, each in its own thread of this process. Returns their addresses."""
    try:
        import netron
    except ImportError as error:
        raise MissingExtraError("pfvm view", "view") from error
    addresses = []
    for file in files:
        silence = io.StringIO()  # netron prints lines of its own
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            host, port = netron.start(str(file), address=(_HOST, _free_port()), browse=browser)
        addresses.append(f"http://{host}:{port}")
    return addresses


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return probe.getsockname()[1]
