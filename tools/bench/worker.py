"""A candidate's process: `python -m pfvm.tools.bench.worker`, JSON lines in and out.

{"do": "load", …} → {"load_seconds", "first_call_seconds"};  {"do": "measure", "seconds"} → {"calls", "median", "cpu"};
{"do": "peak"} → {"bytes"}. What fails answers {"error": message}. Everything else that is printed goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from .candidates import Candidate
from .engines import Call, Settings, prepare

_LEAST_CALLS = 3
_WARM_UP = 3
_PR_SET_PDEATHSIG = 1


class Worker:
    """The state between commands."""

    def __init__(self) -> None:
        self._call: Call = lambda: None

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads, calls once, and writes the outputs beside the inputs where they have names."""
        load = prepare(Candidate(**request["candidate"]), Settings(**request["settings"]))
        start = time.perf_counter()
        self._call = load()
        loaded = time.perf_counter()
        result = self._call()
        called = time.perf_counter()
        if request["outputs"] and isinstance(result, dict):
            from pfvm.tools.npz import write_npz

            write_npz(request["outputs"], result)
        for _ in range(_WARM_UP):
            self._call()
        return {"load_seconds": loaded - start, "first_call_seconds": called - loaded}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Calls for that many seconds, at least three times; the median of one call, and the mean of its CPU time."""
        call, clock = self._call, time.perf_counter
        call()  # the caches are another process's
        durations: list[float] = []
        used = time.process_time()
        end = clock() + request["seconds"]
        while len(durations) < _LEAST_CALLS or clock() < end:
            start = clock()
            call()
            durations.append(clock() - start)
        used = time.process_time() - used
        return {"calls": len(durations), "median": statistics.median(durations), "cpu": used / len(durations)}

    def peak(self, request: dict[str, Any]) -> dict[str, Any]:
        """The most memory that the process has held."""
        return {"bytes": peak_memory()}


def peak_memory() -> int:
    """Bytes. ru_maxrss would start from what the parent process held before exec, so Linux's own count comes first."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _end_with_the_parent() -> None:
    """A stopped process would not notice that nobody will wake it any more; Linux can be asked to end it then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve() -> None:
    """Answers commands until stdin ends."""
    _end_with_the_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints must not end up between the answers
    worker = Worker()
    commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "load": worker.load,
        "measure": worker.measure,
        "peak": worker.peak,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = commands[request["do"]](request)
        except Exception as error:  # whatever an engine or the user's file raises is this candidate's result
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    serve()
