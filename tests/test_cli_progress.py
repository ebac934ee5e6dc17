"""Promise: what takes longer than two seconds shows how far it is and the time left, on a terminal only."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pfvm.compiler import progress
from pfvm.tools import working
from pfvm.tools.working import Bar


def on_a_terminal(code: str) -> str:
    """What a Python program writes to stderr, when that is a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm-256color"}
    read: list[bytes] = []

    def drain() -> None:
        try:
            while data := os.read(ours, 4096):
                read.append(data)
        except OSError:  # how Linux ends a terminal whose other side is closed
            pass

    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    reader = threading.Thread(target=drain)
    reader.start()
    assert process.wait(120) == 0
    reader.join(10)
    os.close(ours)
    return b"".join(read).decode()


CALL = """
from pfvm.tools import working
from pfvm.tools.cli import run_command
working.DELAY = {delay}
raise SystemExit(run_command({arguments!r}))
"""


def test_a_search_shows_how_far_it_is(model: Path, tmp_path: Path) -> None:
    arguments = ["plan", str(model), "-o", str(tmp_path / "plan"), "--shape", "x=64,3"]
    arguments += [
        "--scheduler",
        "auto_recompute_sa",
        "--sram-budget",
        "0.01",
        "--search-steps",
        "20000",
        "--time-budget",
        "2",
    ]
    shown = on_a_terminal(CALL.format(delay=0, arguments=arguments))
    assert f"planning {model}" in shown and "\x1b[2K" in shown, "it is drawn, and erased"
    quiet = on_a_terminal(CALL.format(delay=0, arguments=[*arguments, "--quiet"]))
    assert quiet == ""
    short = on_a_terminal(CALL.format(delay=60, arguments=["compile", str(model), "-o", str(tmp_path / "out.onnx")]))
    assert "compiling" not in short and "3 → 1 nodes" in short


def test_the_time_left_follows_from_the_part_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    bar = Bar("compiling", Console(force_terminal=True, file=io.StringIO()))
    assert bar.left() is None
    monkeypatch.setattr(bar, "_start", time.monotonic() - 10.0)
    bar.update("round 1", 0.25)
    assert bar.left() == pytest.approx(30.0, abs=0.5)
    bar.show()
    drawn: Any = bar._shown
    assert drawn[0].tasks[0].fields["left"].endswith(" left") and drawn[0].tasks[0].description == "compiling: round 1"
    bar.update("round 2", None)
    assert drawn[0].tasks[0].total is None and bar.left() is None
    bar.close()


def test_passes_report_a_part_that_only_grows(model: Path) -> None:
    import onnx
    import pfvm

    heard: list[tuple[str, float]] = []
    with progress.listening(lambda what, part: heard.append((what, part or 0.0))):
        pfvm.optimize(onnx.load(model))
    parts = [part for _, part in heard]
    assert parts == sorted(parts) and 0 < parts[0] < parts[-1] < 1
    assert heard[0][0].startswith("round 1, ") and heard[-1][0].startswith("round 2, ")
    before = len(heard)
    pfvm.optimize(onnx.load(model))
    assert len(heard) == before, "nobody listens any more"


def test_nothing_is_shown_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "DELAY", 0.0)
    with working.working("compiling"):
        progress.report("round 1", 0.5)
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")
