"""A candidate's process, seen from outside: it answers, or it is known why not. It computes only in its turn."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from pfvm.errors import PfvmError

_FRAMEWORK_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_STOP_SECONDS = 5.0


class CandidateError(PfvmError):
    """A candidate that raised, ended or did not answer in time."""


class Process:
    """A worker process on `threads` cores. Between two requests it is stopped, so that no thread of it spins."""

    def __init__(self, name: str, threads: int, command: Sequence[str] | None = None) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed with the process
        cores = cores_for(threads)
        environment = {**os.environ, **dict.fromkeys(_FRAMEWORK_THREADS, str(threads))}
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "pfvm.tools.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        if cores:
            os.sched_setaffinity(self._process.pid, cores)
        self._received = b""

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """One request, one answer. Raises CandidateError, after which the process is gone."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        answer = json.loads(self._line(timeout))
        if "error" in answer:
            self.close()
            raise CandidateError(f"{self._name}: {answer['error']}")
        self._signal(signal.SIGSTOP)
        return answer

    def _line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            ready = select.select([self._process.stdout], [], [], max(left, 0))[0]
            if not ready:
                self.close()
                raise CandidateError(f"{self._name}: no answer within {timeout:g} s")
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise self._ended()
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ended(self) -> CandidateError:
        """The process is gone without an answer: by which signal or code, and its last words."""
        code = self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        last = f": {words[-1].strip()[:300]}" if words else ""
        self.close()
        return CandidateError(f"{self._name}: its process ended {how}{last}")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def close(self) -> None:
        """Ends the process; it may have ended before."""
        self._signal(signal.SIGKILL)  # a stopped process takes no other
        self._process.wait(_STOP_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def cores_for(threads: int) -> set[int]:
    """The cores that every candidate runs on; empty where the system cannot pin."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    return set(sorted(os.sched_getaffinity(0))[-threads:])
