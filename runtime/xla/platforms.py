"""What differs between the platforms that XLA compiles for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import jax
from pfvm.errors import NoDeviceError

PLATFORMS = ("cpu", "cuda", "tpu")


def device_of(platform: str) -> jax.Device:
    """The first device of a platform. Raises NoDeviceError where there is none."""
    try:
        return jax.devices(platform)[0]
    except RuntimeError as error:  # no plugin, no driver, or no such hardware
        advice = "an NVIDIA GPU with its driver, and: pip install 'pfvm[cuda]'" if platform == "cuda" else "a TPU"
        why = str(error).strip().partition("\n")[0]
        raise NoDeviceError(f"device xla:{platform} is not here ({why}); it needs {advice}") from error


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
