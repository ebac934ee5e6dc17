"""Several processes, on one machine or many, as one: jax.distributed, with an end for all where one is lost.

Every process runs the same program with the same inputs, makes the same calls in the same order, and computes its part.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils
from pfvm.errors import OptionError, PfvmError, short
from pfvm.runtime.launch import COORDINATOR, COUNT, NUMBER

# A process that says nothing for so long is lost, and the others end: jax's own 100 s are a long silence.
HEARTBEAT_SECONDS = 20
CONNECT_SECONDS = 60
# How long the end of a process waits for those of the others.
SHUTDOWN_SECONDS = 30

# How a status begins that another process's end leads to.
_BROKEN = ("UNKNOWN", "UNAVAILABLE", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "FAILED_PRECONDITION")

_calls = itertools.count()
_joined: tuple[str, int, int] | None = None


def connect(coordinator: str | None = None, count: int | None = None, number: int | None = None) -> None:
    """Join the other processes; returns when all are there. What is None comes from the environment.

    coordinator: host:port of process 0, where it listens; count: of processes; number: this one's, from 0.
    Raises OptionError for what does not fit together or comes too late, PfvmError where the others are not there within
    60 s. Connecting again with the same arguments does nothing.
    """
    global _joined
    coordinator = os.environ.get(COORDINATOR) if coordinator is None else coordinator
    count = _from_environment(COUNT) if count is None else count
    number = _from_environment(NUMBER) if number is None else number
    if coordinator is None or count is None or number is None:
        raise OptionError(
            "several processes need a coordinator (host:port of process 0), num_processes and process_id; "
            "python -m pfvm.runtime.launch gives them to a program"
        )
    _check(coordinator, count, number)
    if _joined == (coordinator, count, number):
        return
    if jax.distributed.is_initialized():
        raise OptionError("this process already takes part in a jax.distributed program; a second one cannot be joined")
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            number,
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            cluster_detection_method="deactivate",
        )
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        if "before" in reason:
            raise OptionError("connect the processes before anything else uses jax in them: it has started") from error
        raise PfvmError(f"process {number} of {count} could not connect by {coordinator}: {reason}") from error
    _joined = (coordinator, count, number)


def connect_as_told() -> None:
    """Join the others where the environment names them, as that of a launched program does."""
    if COORDINATOR in os.environ and not jax.distributed.is_initialized():
        connect()


def process_count() -> int:
    """How many processes there are; 1 where none were connected."""
    if _joined is not None:
        return _joined[1]  # jax's own answer would start its devices
    return jax.process_count() if jax.distributed.is_initialized() else 1


def local_cpus(count: int) -> Sequence[jax.Device]:
    """The CPU devices of all processes, `count` of each. Raises OptionError where jax has started with fewer."""
    try:
        if not os.environ.get("JAX_PLATFORMS"):
            jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # jax has started
        have = jax.local_device_count("cpu")
        if have != count:
            raise OptionError(
                f"this mesh needs {count} CPU devices in each process, and jax has started with {have}: set "
                f"JAX_NUM_CPU_DEVICES={count} for the program, or make this mesh first"
            ) from None
    return jax.devices("cpu")


@contextmanager
def lost_processes() -> Iterator[None]:
    """Around a call in which all processes take part. Raises PfvmError where one of them is lost."""
    try:
        yield
    except (ValueError, jax.errors.JaxRuntimeError) as error:  # jax raises ValueError for what its collectives report
        reason = str(error).strip().partition("\n")[0]
        if not reason.startswith(_BROKEN):
            raise
        raise PfvmError(
            f"process {jax.process_index()} of {process_count()}: another process was lost, or the connection to it: "
            f"{reason}"
        ) from error


def common_entropy(words: int) -> np.ndarray:
    """Entropy that is new in every call and the same in every process: uint32[words]."""
    text = _common_seed() + str(next(_calls)).encode()
    return np.frombuffer(hashlib.sha256(text).digest()[: 4 * words], np.uint32)


_seed: list[bytes] = []


def _common_seed() -> bytes:
    if not _seed:
        own = np.frombuffer(os.urandom(16), np.uint32)
        _seed.append(np.asarray(multihost_utils.broadcast_one_to_all(own)).tobytes())
    return _seed[0]


def _check(coordinator: object, count: object, number: object) -> None:
    host, colon, port = coordinator.rpartition(":") if isinstance(coordinator, str) else ("", "", "")
    if not colon or not host or not port.isdecimal():
        raise OptionError(f"coordinator {short(coordinator)}: expected host:port of process 0, as in 10.0.0.1:1234")
    if type(count) is not int or count < 1:
        raise OptionError(f"num_processes={count!r}: expected a whole number of 1 or more")
    if type(number) is not int or not 0 <= number < count:
        raise OptionError(f"process_id={number!r}: expected a whole number from 0 to {count - 1}")


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise OptionError(f"{name}={text!r}: expected a whole number")
    return int(text)
