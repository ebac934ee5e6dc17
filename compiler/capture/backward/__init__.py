"""Gradients (and other functions) that torch leaves to kernels, as simpler ATen ops: one family a file."""

from __future__ import annotations

from typing import Any

from . import (
    activation,
    convolution,
    distance,
    loss,
    matrices,
    normalize,
    pool,
    quantize,
    resize,
    running,
    scatter,
    search,
    special,
    tangent,
)

# ATen overload → function of the same arguments; NotImplemented leaves the op as it is.
DECOMPOSITIONS: dict[Any, Any] = {
    **activation.DECOMPOSITIONS,
    **convolution.DECOMPOSITIONS,
    **distance.DECOMPOSITIONS,
    **loss.DECOMPOSITIONS,
    **matrices.DECOMPOSITIONS,
    **normalize.DECOMPOSITIONS,
    **pool.DECOMPOSITIONS,
    **quantize.DECOMPOSITIONS,
    **resize.DECOMPOSITIONS,
    **running.DECOMPOSITIONS,
    **scatter.DECOMPOSITIONS,
    **search.DECOMPOSITIONS,
    **special.DECOMPOSITIONS,
    **tangent.DECOMPOSITIONS,
}
