"""Values that are computed once.

XLA's CPU compiler takes a cheap step into the loop of everything that reads it, and so computes it again in each: the
49 products and sums of a 7x7 depthwise convolution three times, where a normalization reads their result. A call that
must not be inlined ends that; it costs no copy. (lax.optimization_barrier is gone before XLA forms loops.)
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from .platforms import traced_platform


@jax.jit
def _identity(x: Any) -> Any:
    return x


def materialized(x: Any) -> Any:
    """`x`, in memory before anything reads it. Other platforms' compilers than the CPU's are left to their own."""
    if traced_platform() != "cpu":
        return x
    with set_xla_metadata(inlineable="false"):
        return _identity(x)
