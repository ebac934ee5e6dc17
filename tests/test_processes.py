"""Two processes on one machine work as one, and none outlives the other for long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from pfvm.errors import OptionError
from pfvm.runtime.launch import COORDINATOR, COUNT, NUMBER, free_port
from pfvm.runtime.xla.processes import connect

PROGRAM = Path(__file__).with_name("process_program.py")
LONGEST = 60.0  # seconds until a process whose peer is lost has ended
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PFVM_CACHE": "off", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def launched(start: Start, *program: str) -> tuple[int, list[Any]]:
    """The exit code and what the two processes printed as JSON."""
    process = start("-m", "pfvm.runtime.launch", "-n", "2", str(PROGRAM), *program)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-2000:]
    return process.returncode, results(out)


def results(out: str) -> list[Any]:
    """What programs printed as theirs: the library of collectives prints lines of its own, at any time."""
    return [json.JSONDecoder().raw_decode(text)[0] for text in out.split("result ")[1:]]


@pytest.mark.slow
def test_two_processes_train_as_one(start: Start) -> None:
    """The weights are split within each process, the batch over both."""
    _, found = launched(start, "train", "data=2,model=2", "linear1.weight=model,None")
    (expected,) = results(start(str(PROGRAM), "train", "-", "-").communicate(timeout=240)[0])
    assert len(found) == 2
    for result in found:
        np.testing.assert_allclose(result["losses"], expected["losses"], rtol=1e-10)
        for name, value in expected["state"].items():
            np.testing.assert_allclose(result["state"][name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_prefetched_labels_are_judged_in_both(start: Start) -> None:
    """Each has only a part of a batch that is on the devices already."""
    _, (first, second) = launched(start, "prefetched", "data=2")
    (expected,) = results(start(str(PROGRAM), "prefetched", "-").communicate(timeout=240)[0])
    assert first == second and first["error"] == expected["error"]
    np.testing.assert_allclose(first["losses"], expected["losses"], rtol=1e-6)


@pytest.mark.slow
def test_numbers_without_a_seed_are_the_same_in_both(start: Start) -> None:
    _, (first, second) = launched(start, "entropy", "data=2")
    assert first == second
    assert first[0] != first[1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_losing_one_ends_the_other(start: Start, victim: int) -> None:
    """Killed, so that it says nothing: 0 is the coordinator, 1 is missed by its heartbeat."""
    told = {COORDINATOR: f"127.0.0.1:{free_port()}", COUNT: "2"}
    processes = [start(str(PROGRAM), "forever", "data=2", **told, **{NUMBER: str(i)}) for i in range(2)]
    for process in processes:
        assert process.stdout is not None
        lines = []
        while not any(line.endswith("result 8.0\n") for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], (lines, process.communicate())
    processes[victim].send_signal(signal.SIGKILL)
    since = time.monotonic()
    assert processes[1 - victim].wait(LONGEST) != 0
    assert time.monotonic() - since < LONGEST


def test_the_launcher_ends_all_where_one_fails(start: Start) -> None:
    program = f"import os, sys, time\nif os.environ['{NUMBER}'] == '1': sys.exit(7)\ntime.sleep(100)"
    process = start("-m", "pfvm.runtime.launch", "-n", "2", "-c", program)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "process 1 exited with 7; the others are ended" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 2, 0), "need a coordinator"),
        (("somewhere", 2, 0), "'somewhere': expected host:port"),
        (("127.0.0.1:1", 0, 0), "num_processes=0"),
        (("127.0.0.1:1", 2, 2), "process_id=2: expected a whole number from 0 to 1"),
    ],
)
def test_what_does_not_fit_together_is_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        connect(*arguments)


def test_contexts() -> None:
    pytest.importorskip("torch")
    import pfvm

    with pytest.raises(OptionError, match="Context needs a device"):
        pfvm.Context()
    with pytest.raises(OptionError, match="several processes work together on xla devices, not on pfvm:cpu"):
        pfvm.Context("pfvm:cpu", coordinator="127.0.0.1:1", num_processes=2, process_id=0)
    with pytest.raises(OptionError, match="process_id=5"):
        pfvm.Context(coordinator="127.0.0.1:1", num_processes=2, process_id=5)
