"""What differs between the platforms that XLA compiles for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import jax
from jaxlib import xla_client
from pfvm.errors import NoDeviceError

PLATFORMS = ("cpu", "cuda", "tpu")


def device_of(platform: str) -> jax.Device:
    """The first device of a platform. Raises NoDeviceError where there is none."""
    if platform == "cpu":
        return _own_cpu()
    try:
        return jax.devices(platform)[0]
    except RuntimeError as error:  # no plugin, no driver, or no such hardware
        advice = "an NVIDIA GPU with its driver, and: pip install 'pfvm[cuda]'" if platform == "cuda" else "a TPU"
        why = str(error).strip().partition("\n")[0]
        raise NoDeviceError(f"device xla:{platform} is not here ({why}); it needs {advice}") from error


@functools.cache
def _own_cpu() -> jax.Device:
    """A CPU device beside that of the user's jax, which runs a program in the thread that calls it.

    jax's own hands every program to another thread. That helps a caller who goes on before the results are there; ours
    are wanted at once. And what a program computes in (activations) would then come from an allocator's arena for
    threads, which glibc returns to the system after each call: see `scratch`.
    """
    client: Any = xla_client.make_cpu_client(asynchronous=False)
    device: jax.Device = client.local_devices()[0]
    return device


_traced: ContextVar[str] = ContextVar("traced platform", default="cpu")


@contextmanager
def lowering_for(platform: str) -> Iterator[None]:
    """Inside, rules write for this platform, and float32 products are computed in float32: GPUs and TPUs round their
    operands to fewer bits otherwise."""
    token = _traced.set(platform)
    try:
        with nullcontext() if platform == "cpu" else jax.default_matmul_precision("highest"):
            yield
    finally:
        _traced.reset(token)


def traced_platform() -> str:
    """The platform that a rule writes for."""
    return _traced.get()
