"""Where a benchmark ran: processor, cores, load, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from typing import Any

_PACKAGES = {
    "pfvm": ("pfvm", "onnx", "onnx-ir", "onnxruntime", "jax", "jaxlib"),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "torch": ("torch",),
    "jax": ("jax", "jaxlib"),
}


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Tasks that ran or waited in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def describe(load_before: float) -> dict[str, Any]:
    """The machine as the JSON report has it."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(load_before, 2),
    }


def versions(engines: Iterable[str]) -> dict[str, str]:
    """Python's and of the packages behind the engines, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in sorted({p for engine in engines for p in _PACKAGES[engine]}):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
