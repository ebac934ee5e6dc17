"""Compiled programs on disk, so that a model is compiled once per machine and not once per process.

The key is the lowered program itself (StableHLO: it holds the graph, the shapes and every value that was known at
compile time), with the compiler's versions and flags and the CPU's features. So an entry never needs to be declared
stale. PFVM_CACHE names the folder, by default `pfvm` in the user's cache folder; PFVM_CACHE=off keeps everything in
memory. Reading an entry runs what it holds: entries that another user could have written are ignored.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pathlib
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import jaxlib
from jax.experimental import serialize_executable
from pfvm.runtime.cache_folder import cache_folder

from .origins import are_named

logger = logging.getLogger(__name__)

_MAGIC = b"pfvm-xla-executable-1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
# What compiles faster than this is not worth a file.
_MIN_SECONDS = 0.1
DEFAULT_LIMIT_BYTES = 1 << 30


class ExecutableCache:
    """A folder with one file per executable. Several processes may use it at once; the oldest entries go first."""

    def __init__(self, folder: pathlib.Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def load(self, key: str, lowered: jax.stages.Lowered, device: jax.Device) -> jax.stages.Compiled | None:
        """The executable of `lowered`, or None where there is no usable entry."""
        path = self._path(key)
        payload = self._read(path)
        if payload is None:
            return None
        try:
            loaded = serialize_executable.deserialize_and_load(
                payload,
                jax.tree_util.tree_structure(lowered.args_info),
                lowered.out_tree,
                device.client,
                execution_devices=[device],
            )
        except Exception as error:  # whatever unpickling and XLA raise for a file that is not what it seems
            logger.debug("cache entry %s cannot be loaded and is ignored: %s", path, error)
            return None
        os.utime(path)  # the age that eviction goes by
        return loaded

    def store(self, key: str, compiled: jax.stages.Compiled) -> None:
        """Write an entry, under a temporary name first. A failure is no error: the next process compiles again."""
        path = self._path(key)
        try:
            payload = serialize_executable.serialize(compiled)[0]
        except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
            logger.debug("an executable cannot be serialized: %s", error)
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".tmp", delete=False) as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(file.name, path)
            self.evict()
        except OSError as error:
            logger.debug("cache entry %s cannot be written: %s", path, error)

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / f"{key}.xla"

    def _read(self, path: pathlib.Path) -> bytes | None:
        try:
            with path.open("rb") as file:
                if not _is_ours(os.fstat(file.fileno())):
                    logger.debug("cache entry %s may have been written by another user and is ignored", path)
                    return None
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.debug("cache entry %s cannot be read: %s", path, error)
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        payload = data[start:]
        if not data.startswith(_MAGIC) or hashlib.sha256(payload).digest() != data[len(_MAGIC) : start]:
            logger.debug("cache entry %s is damaged and is ignored", path)
            return None
        return payload

    def evict(self) -> None:
        """Delete the entries that were not used for longest, until the rest fits the limit."""
        entries = []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:  # another process was faster
                continue
            entries.append((status.st_mtime, status.st_size, path))
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in sorted(entries, key=lambda entry: entry[0]):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


def compile_cached(
    lowered: jax.stages.Lowered,
    device: jax.Device,
    setting: str = "",
    compiler: Callable[[], jax.stages.Compiled] | None = None,
) -> tuple[jax.stages.Compiled, bool]:
    """The executable, and whether it came from the disk. Raises what compiling raises.

    `compiler` compiles otherwise than ``lowered.compile()``; `setting` is its name in the key.
    """
    cache = None if are_named() else configured_cache()
    compiler = compiler or lowered.compile
    if cache is None:
        return compiler(), False
    key = executable_key(lowered, device, setting)
    loaded = cache.load(key, lowered, device)
    if loaded is not None:
        return loaded, True
    start = time.perf_counter()
    compiled = compiler()
    if time.perf_counter() - start >= _MIN_SECONDS:
        cache.store(key, compiled)
    return compiled, False


def configured_cache() -> ExecutableCache | None:
    """The cache that the environment asks for; None where it is off."""
    folder = cache_folder()
    return None if folder is None else ExecutableCache(folder)


def executable_key(lowered: jax.stages.Lowered, device: jax.Device, setting: str = "") -> str:
    """Everything that the compiled program follows from, as a hash."""
    digest = hashlib.sha256()
    for part in (lowered.as_text(), *_environment(), device.platform, device.device_kind, setting):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _environment() -> tuple[str, ...]:
    from pfvm import __version__

    return (
        __version__,
        jax.__version__,
        jaxlib.__version__,
        str(sys.version_info[:2]),
        os.environ.get("XLA_FLAGS", ""),
        str(jax.config.read("jax_disable_most_optimizations")),
        str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        _cpu(),
    )


@functools.cache
def _cpu() -> str:
    """The processor with its instruction sets: machine code for one may not run on another."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    telling = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join([platform.machine(), platform.processor(), *dict.fromkeys(telling)])


def _is_ours(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
