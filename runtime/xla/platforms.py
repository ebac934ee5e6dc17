"""What differs between the platforms that XLA compiles for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

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


def exact(platform: str) -> AbstractContextManager[None]:
    """Inside, float32 products are computed in float32: GPUs and TPUs round their operands to fewer bits otherwise."""
    return nullcontext() if platform == "cpu" else jax.default_matmul_precision("highest")
