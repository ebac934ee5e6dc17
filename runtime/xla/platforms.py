"""What differs between the platforms that XLA compiles for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax._src import xla_bridge
from jaxlib import xla_client
from pfvm.errors import NoDeviceError, OptionError
from pfvm.runtime.hardware import tpu_is_here

# libtpu is there to compile with, too. Where there is no TPU, jax would load it in every process all the same, to find
# none, and print what it misses.
if not tpu_is_here() and not jax.config.values["jax_platforms"]:
    getattr(xla_bridge, "_backend_factories", {}).pop("tpu", None)

PLATFORMS = ("cpu", "cuda", "tpu")
# How a device computes products of float32: a TPU's matrix units multiply bfloat16, and make float32 of 3 or 6 such
# products; an NVIDIA GPU's round to TF32 unless told otherwise.
Precision = Literal["default", "high", "highest"]
# A TPU's programs are written for its units, as those of every other framework are; others promise float32.
_UNLESS_TOLD: dict[str, Precision] = {"cpu": "highest", "cuda": "highest", "tpu": "default"}


def device_of(platform: str) -> jax.Device:
    """The first device of a platform. Raises NoDeviceError where there is none."""
    if platform == "cpu":
        return own_cpu()
    try:
        return jax.devices(platform)[0]
    except RuntimeError as error:  # no plugin, no driver, or no such hardware
        advice = "an NVIDIA GPU with its driver, and: pip install 'pfvm[cuda]'" if platform == "cuda" else "a TPU"
        why = str(error).strip().partition("\n")[0]
        raise NoDeviceError(f"device xla:{platform} is not here ({why}); it needs {advice}") from error


@functools.cache
def own_cpu() -> jax.Device:
    """A CPU device beside that of the user's jax, which runs a program in the thread that calls it.

    jax's own hands every program to another thread. That helps a caller who goes on before the results are there; ours
    are wanted at once. And what a program computes in (activations) would then come from an allocator's arena for
    threads, which glibc returns to the system after each call: see `scratch`.
    """
    client: Any = xla_client.make_cpu_client(asynchronous=False)
    device: jax.Device = client.local_devices()[0]
    return device


_traced: ContextVar[str] = ContextVar("traced platform", default="cpu")


def precision_of(platform: str, asked: str | None) -> Precision:
    """The precision of products on a platform. Raises OptionError for a word that is none, and on a CPU for any but
    "highest", which is what it computes in."""
    if asked is None:
        return _UNLESS_TOLD[platform]
    if asked not in get_args(Precision):
        raise OptionError(f"precision={asked!r}: expected one of {', '.join(get_args(Precision))}")
    if platform == "cpu" and asked != "highest":
        raise OptionError(f"precision={asked!r}: a CPU computes float32 in float32, which is precision 'highest'")
    return asked  # type: ignore[return-value]  # just checked


def computed_types(platform: str, precision: Precision) -> dict[np.dtype, np.dtype]:
    """What a platform computes as another type: a TPU float64 as float32, also within complex numbers, unless it is to
    be as exact as can be."""
    if platform != "tpu" or precision == "highest":
        return {}
    return {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


@contextmanager
def lowering_for(platform: str, precision: Precision | None = None, rules: str | None = None) -> Iterator[None]:
    """Inside, rules write for this platform, and products of float32 are computed in this precision.

    rules: another name that rules see in the place of the platform's.
    """
    token = _traced.set(rules or platform)
    chosen = precision or _UNLESS_TOLD[platform]
    needed = platform != "cpu" and chosen != "default"
    try:
        with jax.default_matmul_precision(chosen) if needed else nullcontext():
            yield
    finally:
        _traced.reset(token)


def traced_platform() -> str:
    """The platform that a rule writes for."""
    return _traced.get()
