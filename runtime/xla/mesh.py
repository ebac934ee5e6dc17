"""Meshes of devices: those of a platform, in this process or in all that `pfvm.runtime.xla.processes` has connected."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxlib import xla_client
from pfvm.compiler.mesh import mesh_size, mesh_text
from pfvm.errors import NoDeviceError, OptionError

from .platforms import device_of
from .processes import connect_as_told, local_cpus, process_count


def make_mesh(platform: str, axes: Mapping[str, int]) -> Mesh:
    """A mesh of the first devices of a platform, in their order: the last axis varies fastest.

    On "cpu", this process gets as many devices as the mesh needs. Raises NoDeviceError where there are too few, and
    OptionError where several processes cannot share it evenly.
    """
    devices = np.array(_devices(platform, mesh_size(axes), mesh_text(axes)), object)
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def _devices(platform: str, count: int, text: str) -> Sequence[jax.Device]:
    connect_as_told()
    processes = process_count()
    if count % processes:
        raise OptionError(f"mesh {text}: its {count} devices cannot be shared evenly by {processes} processes")
    if platform == "cpu":
        return own_cpus(count) if processes == 1 else local_cpus(count // processes)
    device_of(platform)  # which says what is missing where there is none
    devices = jax.devices(platform)
    if len(devices) < count:
        raise NoDeviceError(f"mesh {text} needs {count} devices, and xla:{platform} has {len(devices)} here")
    if processes == 1:
        return devices[:count]
    each = count // processes
    chosen = [d for i in range(processes) for d in [d for d in devices if d.process_index == i][:each]]
    if len(chosen) < count:
        raise NoDeviceError(f"mesh {text} needs {each} devices in each process, and one of {processes} has fewer")
    return chosen


@functools.cache
def own_cpus(count: int) -> tuple[jax.Device, ...]:
    """CPU devices beside those of the user's jax (see `platforms.own_cpu`), so that no flag has to be set before jax
    is imported."""
    client: Any = xla_client.make_cpu_client(asynchronous=False, num_devices=count)
    return tuple(client.local_devices())


# Devices of one CPU take turns: the first waits in a collective for as long as all others compute, which XLA takes for
# a fault, and ends the process, after 40 s.
PATIENCE: dict[str, str | bool] = {
    "xla_cpu_collective_call_terminate_timeout_seconds": "86400",
    "xla_cpu_collective_call_warn_stuck_seconds": "3600",
}

# XLA's CPU runtime gives each partition of a run a thread, of as many as there are devices. Where two runs are under
# way, each can hold threads that wait for partitions of the other's kind that never start: the process is then ended
# after 40 s (jaxlib 0.10.2, also through jax's own client). So one runs at a time, to its end.
_ONE_RUN = threading.Lock()


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """A program of many CPU devices that may be called from any thread."""

    def call(*arguments: Any) -> Any:
        with _ONE_RUN:
            return jax.block_until_ready(function(*arguments))

    return call


def parts_of(mesh: Mesh, axes: Sequence[str]) -> int:
    """Into how many parts a dimension is split over these axes."""
    return math.prod(mesh.shape[axis] for axis in axes)
