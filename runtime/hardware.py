"""Which accelerators this machine has, from the system's own lists: no driver or library is loaded."""

from __future__ import annotations

import functools
import pathlib

# What a Google PCI card calls itself where it is a TPU (v2 and v3, v4i, v4, v5p, v5e, v6e, 7x), as jax has it.
_GOOGLE = "0x1ae0"
_TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
_NVIDIA = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")  # the last two: containers and Windows' Linux


@functools.cache
def tpu_is_here() -> bool:
    """Is a TPU attached to this machine?"""
    return any(_read(card / "vendor") == _GOOGLE and _read(card / "device") in _TPUS for card in _cards())


@functools.cache
def nvidia_gpu_is_here() -> bool:
    """Is there an NVIDIA GPU with its driver?"""
    return any(pathlib.Path(path).exists() for path in _NVIDIA)


def _cards() -> list[pathlib.Path]:
    folder = pathlib.Path("/sys/bus/pci/devices")
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
