"""What ONNX Runtime's CPU provider has a kernel for: its own registry, asked without creating a session."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

PROVIDER = "CPUExecutionProvider"
# What ONNX Runtime's own layout optimizer writes; no file holds them.
INTERNAL_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
_OPEN_END = 2147483647


class Kernel(NamedTuple):
    """One kernel: the opset versions of its operator that it serves, and the types of each type parameter.

    `last` is None for a kernel that serves the version `first` only, until the schema changes again.
    """

    first: int
    last: int | None
    types: Mapping[str, frozenset[str]]

    def serves(self, since_version: int) -> bool:
        """Does it serve an operator whose schema dates from this opset?"""
        return self.first == since_version or (self.last is not None and self.first <= since_version <= self.last)

    def accepts(self, types: Mapping[str, str]) -> bool:
        """Are these types ("T" → "tensor(float)") among its own? What is not known is taken to fit.

        float16 fits a float kernel: ONNX Runtime itself puts the casts around it.
        """
        return all(_fits(types[name], allowed) for name, allowed in self.types.items() if name in types)


def _fits(text: str, allowed: frozenset[str]) -> bool:
    return text in allowed or (text == "tensor(float16)" and "tensor(float)" in allowed)


@functools.cache
def registry() -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """(domain, operator) → its CPU kernels. Domain "" is ai.onnx."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in get_all_opkernel_def():
        if kernel.provider != PROVIDER or kernel.domain in INTERNAL_DOMAINS:
            continue
        first, last = kernel.version_range
        types = {name: frozenset(allowed) for name, allowed in kernel.type_constraints.items()}
        found.setdefault((kernel.domain, kernel.op_name), []).append(
            Kernel(first, None if last == _OPEN_END else last, types)
        )
    return {key: tuple(kernels) for key, kernels in found.items()}


def kernels_at(domain: str, op_type: str, since_version: int) -> list[Kernel]:
    """The kernels of an operator whose schema dates from `since_version`."""
    return [k for k in registry().get((domain, op_type), ()) if k.serves(since_version)]


def has_kernel(domain: str, op_type: str, since_version: int, types: Mapping[str, str] = {}) -> bool:
    """Is there a kernel for these types? Without types: for any."""
    return any(k.accepts(types) for k in kernels_at(domain, op_type, since_version))


def kernel_versions() -> dict[tuple[str, str], set[int]]:
    """(domain, operator) → the opset versions at which a kernel starts."""
    return {key: {k.first for k in kernels} for key, kernels in registry().items()}
