"""What pfvm runs on: versions, processor, memory, environment, cache. Loads no framework."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import re
import sys
from collections.abc import Iterator
from typing import Any

from pfvm.runtime.cache_folder import cache_folder

from .bench.machine import cores, cpu_name

# Every distribution that a fault may come from; what is not installed is listed too, as that may be the fault.
PACKAGES = (
    *("numpy", "onnx", "onnx-ir", "onnx-shape-inference", "onnxruntime", "onnxruntime-gpu", "protobuf"),
    *("pydantic", "typer", "rich", "zstandard", "torch", "jax", "jaxlib", "libtpu", "jax-cuda13-plugin"),
    *("jax-cuda12-plugin", "flatbuffers", "ml_dtypes", "netron", "pillow"),
)
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,.-]*)\])?")
_VARIABLES = re.compile(r"^(PFVM_|XLA_FLAGS$|JAX_|LIBTPU_|TPU_|OMP_|MKL_|CUDA_VISIBLE_DEVICES$|ORT_)")
# What XLA, ONNX Runtime and numpy choose their kernels by; a processor lists a hundred others.
_FEATURES = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


def versions() -> dict[str, str | None]:
    """Package → version, None where it is not installed; pfvm and python first."""
    from pfvm import __version__

    found: dict[str, str | None] = {"pfvm": __version__, "python": platform.python_version()}
    return found | {name: version(name) for name in PACKAGES}


def version(package: str) -> str | None:
    """Of an installed package, None of another."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def extras() -> dict[str, list[str]]:
    """Extra of pfvm → the packages that it lacks here; empty: it is installed. Those for developers are left out."""
    try:
        offered = importlib.metadata.metadata("pfvm").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder that nobody installed
        return {}
    return {extra: _lacking("pfvm", extra) for extra in offered if extra not in ("all", "test", "docs")}


def _lacking(package: str, extra: str) -> list[str]:
    """What an extra of an installed package requires and is not installed."""
    missing: list[str] = []
    for line in importlib.metadata.requires(package) or []:
        requirement, _, condition = line.partition(";")
        found = _REQUIREMENT.match(requirement.strip())
        if found is None or not re.search(rf"\bextra == [\"']{re.escape(extra)}[\"']", condition):
            continue
        name, inner = found[1], found[2] or ""
        if version(name) is None:
            missing.append(name)
        else:
            missing += [each for part in inner.split(",") if part for each in _lacking(name, part)]
    return list(dict.fromkeys(missing))


def machine() -> dict[str, Any]:
    """Processor, its features, cores (usable, all), memory in bytes (all, available; None where unknown), system."""
    return {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "cpu": cpu_name(),
        "features": cpu_features(),
        "cores": cores(),
        "cores_of_machine": os.cpu_count() or 1,
        "memory_bytes": _memory_limit(),
        "memory_available_bytes": _memory_available(),
        "accelerators": _accelerators(),
    }


def cpu_features() -> list[str] | None:
    """The instruction sets that decide which kernels run; None where the system does not list them."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    present = set(found[1].split()) if found else set()
    return [name for name in _FEATURES if name in present]


def _memory_limit() -> int | None:
    """Of the machine, or of the container where that is less."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(size, int(pathlib.Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control groups, or "max"
        return size


def _memory_available() -> int | None:
    try:
        text = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _accelerators() -> list[str]:
    """Device files of NVIDIA GPUs and of TPUs. Whether a framework can use them is what the self-test finds out."""
    patterns = ("nvidia[0-9]*", "accel[0-9]*", "vfio/[0-9]*")
    return sorted(str(path) for pattern in patterns for path in pathlib.Path("/dev").glob(pattern))


def environment() -> dict[str, str]:
    """The variables that change what pfvm and its engines do."""
    return {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)}


def cache() -> dict[str, Any]:
    """The folder of compiled programs: {"folder": None where it is off, "writable", "files", "bytes"}."""
    folder = cache_folder()
    if folder is None:
        return {"folder": None, "writable": False, "files": 0, "bytes": 0}
    sizes = list(_sizes(folder))
    nearest = next((path for path in (folder, *folder.absolute().parents) if os.path.exists(path)), folder)
    return {
        "folder": str(folder),
        "writable": nearest.is_dir() and os.access(nearest, os.W_OK),
        "files": len(sizes),
        "bytes": sum(sizes),
    }


def _sizes(folder: pathlib.Path) -> Iterator[int]:
    """Bytes of each program; other processes may add and drop some meanwhile."""
    for path in folder.glob("*.xla"):
        with contextlib.suppress(OSError):
            yield path.stat().st_size


def installation() -> dict[str, str]:
    """Where Python and pfvm are."""
    import pfvm

    return {"python": sys.executable, "pfvm": str(pathlib.Path(pfvm.__file__).parent)}
