"""XLA's TPU compiler (libtpu), run in a process of its own, on machines without a TPU."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from pfvm.errors import CompilerCrashError, DeviceMemoryError, MissingExtraError, OptionError, PfvmError, flag
from pfvm.runtime.topology import Topology, chips

from .compiled import Lowered

Effort = Literal["fast", "full"]
DEFAULT_TIMEOUT = 3600.0

# Without them libtpu asks a metadata server that only Google's machines have, waits for other processes that use it,
# or writes its log to a shared folder. jax itself runs on the CPU: the TPU is only compiled for.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}
# XLA replaces softmax before a product by a kernel of its own, of which it states no cycles.
_NO_KERNELS = {"xla_tpu_enable_flash_attention": False}
_EFFORTS: dict[str, dict[str, Any]] = {"fast": {"exec_time_optimization_effort": -1.0}, "full": {}}
_SIZE = r"([\d.]+)([KMGT]?)"
_NEEDED = (
    re.compile(rf"\({_SIZE}\) exceeds available \w+ \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} \w+"),
)


class TpuProgram(NamedTuple):
    """What the compiler made. executable: for `serialize_executable.deserialize_and_load`, pickled with its trees.

    memory: bytes by the names of jax's CompiledMemoryStats. cost: XLA's cost analysis, loop bodies counted once.
    """

    hlo: str
    executable: bytes
    memory: Mapping[str, int]
    cost: Mapping[str, float]
    device_kind: str
    seconds: float


def check_effort(effort: str | None) -> Effort:
    """Raises OptionError for a word that is none of `Effort`. None: "full"."""
    if effort is None:
        return "full"
    if effort not in get_args(Effort):
        raise OptionError(f"effort={effort!r}: expected one of {', '.join(get_args(Effort))}")
    return effort  # type: ignore[return-value]  # just checked


def compile_for(topology: Topology, program: Lowered, effort: Effort, timeout: float = DEFAULT_TIMEOUT) -> TpuProgram:
    """The program compiled for the first device of a topology.

    timeout: seconds. Raises MissingExtraError without libtpu, DeviceMemoryError where the program needs more than the
    device has, OptionError for a topology that libtpu does not know, PfvmError for what else it refuses, and
    CompilerCrashError.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise MissingExtraError(f"device xla:tpu@{topology.name}", "tpu")
    request = {
        "topology": topology.name,
        "one_chip_hosts": [1, 1, 1],
        "donated": program.donated,
        "spread": None if program.spread is None else program.spread._asdict(),
        "compiler_options": {**_EFFORTS[effort], **_NO_KERNELS},
    }
    with tempfile.TemporaryDirectory(prefix="pfvm-tpu-") as name:
        folder = pathlib.Path(name)
        (folder / "program.bin").write_bytes(program.exported.serialize())
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        reply = _run(folder, topology, timeout)
        if "error" in reply:
            raise _error(reply, topology)
        return TpuProgram(
            (folder / "hlo.txt").read_text(encoding="utf-8"),
            (folder / "executable.bin").read_bytes(),
            reply["memory"],
            reply["cost"],
            reply["device_kind"],
            reply["seconds"],
        )


def _run(folder: pathlib.Path, topology: Topology, timeout: float) -> dict[str, Any]:
    """The worker's reply. Raises CompilerCrashError where it ends without one."""
    worker = pathlib.Path(__file__).with_name("tpu_worker.py")
    command = [sys.executable, "-P", str(worker), str(folder)]
    environment = {**os.environ, **ENVIRONMENT}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise CompilerCrashError(
                f"xla:tpu@{topology.name}: the TPU compiler did not end within {timeout:g} s and was stopped; "
                f"{flag('effort', 'fast')} compiles faster, {flag('timeout')} waits longer"
            ) from None
        finally:  # also where the user interrupts
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    reply = folder / "reply.json"
    if code or not reply.exists():
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        lines = [line for line in (folder / "log.txt").read_text(errors="replace").splitlines() if line.strip()]
        last = f"; its last line: {lines[-1][:300]}" if lines else ""
        raise CompilerCrashError(f"xla:tpu@{topology.name}: the TPU compiler {how}{last}")
    found: dict[str, Any] = json.loads(reply.read_text(encoding="utf-8"))
    return found


def _error(reply: Mapping[str, str], topology: Topology) -> PfvmError:
    message = reply["message"]
    if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
        return _no_memory(message, topology)
    first = " ".join(message.strip().partition("\n")[0].split())[:400]
    if "opology" in first and "INVALID_ARGUMENT" in first:
        return OptionError(f"xla:tpu@{topology.name}: libtpu has no such topology: {first}")
    return PfvmError(f"xla:tpu@{topology.name}: XLA could not compile the model: {first}")


def _no_memory(message: str, topology: Topology) -> DeviceMemoryError:
    name = f"xla:tpu@{topology.name}"
    match = next((found for pattern in _NEEDED if (found := pattern.search(message))), None)
    if match is None:
        return DeviceMemoryError(f"{name}: out of memory: {' '.join(message.split())[:400]}")
    needed, available = (_bytes(*match.group(i, i + 1)) for i in (1, 3))
    larger = [chip.name for chip in chips().values() if chip.hbm_bytes > needed]
    advice = f"; chips with as much a device: {', '.join(larger)}" if larger else ""
    return DeviceMemoryError(
        f"{name}: out of memory: the program needs {_gib(needed)} of HBM and {_gib(available)} are available"
        f"{advice}; else a smaller batch, or {flag('bf16', True)}"
    )


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
