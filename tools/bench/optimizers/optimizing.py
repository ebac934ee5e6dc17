"""Runs optimizers on a file, each in fresh processes on one core, and looks at what they wrote."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx.inliner
from pfvm.errors import OptionError
from pfvm.tools.bench.process import cores_for
from pfvm.tools.bench.turns import order

OURS = "pfvm"
FOR_ORT = "pfvm-ort"
"""With `--target ort`: a file for ONNX Runtime alone, not beside the peers' in nodes but in what running it takes."""
PEERS = ("onnxsim", "onnxslim", "onnxoptimizer", "onnxscript")
BASE = "load+save"
_SCRIPT = Path(__file__).with_name("peer.py")
# One slow run tells enough.
_ENOUGH_SECONDS = 20.0
# Seconds on the clock for each second of processor time that is allowed.
_PATIENCE = 3.0


class Optimizer(NamedTuple):
    """A name of peer.py, and the interpreter whose environment has it."""

    name: str
    python: str


class Run(NamedTuple):
    """Seconds of processor time and on the clock that one process took; why it failed."""

    cpu: float = 0.0
    wall: float = 0.0
    error: str | None = None


def versions(python: str) -> dict[str, str]:
    """Of the peers in that environment. Raises OptionError where it is none."""
    try:
        done = subprocess.run([python, str(_SCRIPT), "versions"], capture_output=True, text=True, timeout=60)
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise OptionError(f"--peers-python {python}: no Python that runs: {error}") from error
    return found


def run(optimizer: Optimizer, given: Path, result: Path, timeout: float) -> Run:
    """One fresh process. It must write the file and end with 0, within `timeout` seconds of processor time."""
    result.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as words:
        command = [optimizer.python, str(_SCRIPT), optimizer.name, str(given), str(result)]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=words, stderr=words, env=_environment())
        limit = threading.Timer(_PATIENCE * timeout, process.kill)
        try:
            _hold(process.pid, timeout)
            limit.start()
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        finally:
            limit.cancel()
        cpu, wall = used.ru_utime + used.ru_stime, time.perf_counter() - start
        process.returncode = code = os.waitstatus_to_exitcode(status)
        words.seek(0)
        last = (words.read().decode(errors="replace").strip().splitlines() or [""])[-1].strip()[:300]
    if cpu >= timeout or wall >= _PATIENCE * timeout:
        return Run(cpu, wall, f"not done in {timeout:g} s")
    if code or not result.is_file():
        how = f"ended by signal {-code}" if code < 0 else f"exit code {code}" if code else "it wrote no file"
        return Run(cpu, wall, f"{how}{': ' if last else ''}{last}")
    return Run(cpu, wall)


def _hold(pid: int, timeout: float) -> None:
    """Keeps a process on one core and to that much processor time, where the system can do so."""
    if cores := cores_for(1):
        os.sched_setaffinity(pid, cores)
    if hasattr(resource, "prlimit"):
        limit = math.ceil(timeout)
        resource.prlimit(pid, resource.RLIMIT_CPU, (limit, limit))


def _environment() -> dict[str, str]:
    """One thread; modules may keep their bytecode, as those of installed packages have it."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**given, **dict.fromkeys(names, "1")}


def in_turns(
    optimizers: Sequence[Optimizer], given: Path, folder: Path, rounds: int, timeout: float
) -> Iterator[tuple[Optimizer, list[Run]]]:
    """Each optimizer's runs; its last result lies in the folder under `result_of`. A failed or slow one runs once."""
    runs: dict[Optimizer, list[Run]] = {each: [] for each in optimizers}
    for _, each in order(optimizers, rounds):
        done = runs[each]
        if not done or (done[-1].error is None and done[-1].cpu < _ENOUGH_SECONDS):
            done.append(run(each, given, result_of(folder, each.name), timeout))
    yield from runs.items()


def result_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.onnx"


def row(name: str, runs: Sequence[Run], result: Path) -> dict[str, Any]:
    """A row of the report: the medians of the runs, and what is left in the file."""
    error = runs[-1].error
    found: dict[str, Any] = {"optimizer": name, "error": error}
    found |= {"cpu_seconds": statistics.median(r.cpu for r in runs), "seconds": statistics.median(r.wall for r in runs)}
    found |= {"runs_cpu_seconds": [round(r.cpu, 3) for r in runs]}
    if error is None:
        found |= {"nodes": nodes(result), "bytes": result.stat().st_size}
    return found


def nodes(path: Path) -> int:
    """Nodes in all bodies, functions inlined, Constants not counted."""
    model = onnx.load(path, load_external_data=False)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    return _count(model.graph)


def _count(graph: onnx.GraphProto) -> int:
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    bodies += [g for node in graph.node for a in node.attribute for g in a.graphs]
    return sum(node.op_type != "Constant" for node in graph.node) + sum(map(_count, bodies))


def optimizers(peers_python: Path | None) -> tuple[list[Optimizer], Mapping[str, str]]:
    """Those that are there, load+save and ours first; and the versions of the peers' packages."""
    here = [Optimizer(name, sys.executable) for name in (BASE, OURS, FOR_ORT)]
    if peers_python is None:
        return here, {}
    found = versions(str(peers_python))
    return [*here, *(Optimizer(name, str(peers_python)) for name in PEERS if name in found)], found
