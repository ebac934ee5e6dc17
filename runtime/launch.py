"""`python -m pfvm.runtime.launch -n 2 train.py`: a program in several processes that work as one.

Each process finds the others by its environment, at its first mesh (`mesh="data=4"`) or `pfvm.Context()`. When one
fails, the others are ended, and the launcher exits with that one's code.

On several machines, the same line runs on each, with the address of the first one:

    python -m pfvm.runtime.launch -n 1 --machines 2 --machine 0 --coordinator 10.0.0.1:1234 train.py
    python -m pfvm.runtime.launch -n 1 --machines 2 --machine 1 --coordinator 10.0.0.1:1234 train.py
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

COORDINATOR, COUNT, NUMBER = "PFVM_COORDINATOR", "PFVM_NUM_PROCESSES", "PFVM_PROCESS_ID"
"""The environment of a process: host:port of process 0, how many there are, and which one this is."""

# What the others may take to notice by themselves that one is lost, before they are ended.
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_FLAGS = ("-n", "--processes", "--machines", "--machine", "--coordinator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the processes and waits for them. Returns 0, or the code of the first that failed."""
    own, program = _split(list(sys.argv[1:] if arguments is None else arguments))
    given = _parser().parse_args(own)
    if not program:
        _parser().error("name the program: a file, or -m MODULE")
    if given.processes < 1 or not 0 <= given.machine < given.machines:
        _parser().error("expected at least one process, and --machine from 0 to --machines - 1")
    if given.machines > 1 and given.coordinator is None:
        _parser().error("several machines need --coordinator HOST:PORT, an address of machine 0 that all can reach")
    coordinator = given.coordinator or f"127.0.0.1:{free_port()}"
    first, count = given.machine * given.processes, given.machines * given.processes
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(first, first + given.processes):
            environment = {**os.environ, COORDINATOR: coordinator, COUNT: str(count), NUMBER: str(number)}
            started.append(subprocess.Popen([sys.executable, *program], env=environment))
        return _wait(started, first)
    except KeyboardInterrupt:
        return 130
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait(processes: list[subprocess.Popen[bytes]], first: int) -> int:
    while True:
        codes = [process.poll() for process in processes]
        failed = next((i for i, code in enumerate(codes) if code), None)
        if failed is not None:
            break
        if all(code == 0 for code in codes):
            return 0
        time.sleep(_POLL_SECONDS)
    code = codes[failed] or 1
    how = f"was ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exited with {code}"
    print(f"launch: process {first + failed} {how}; the others are ended", file=sys.stderr)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)
    return 128 - code if code < 0 else code


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own flags, which come first, and what python runs."""
    end = 0
    while end < len(arguments) and arguments[end].partition("=")[0] in (*_FLAGS, "-h", "--help"):
        end += 1 if "=" in arguments[end] or arguments[end] in ("-h", "--help") else 2
    return arguments[:end], arguments[end:]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pfvm.runtime.launch",
        usage="%(prog)s -n PROCESSES [flags] FILE.py|-m MODULE [arguments]",
        allow_abbrev=False,
        description="Run a Python program in several processes that work as one.",
    )
    parser.add_argument("-n", "--processes", type=int, required=True, help="how many to start here")
    parser.add_argument("--machines", type=int, default=1, help="on how many machines this command runs")
    parser.add_argument("--machine", type=int, default=0, help="which of them this is, from 0")
    parser.add_argument("--coordinator", help="host:port of machine 0; by default a free port of this machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
