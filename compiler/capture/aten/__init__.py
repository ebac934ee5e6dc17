"""ATen op → ONNX nodes: one small function per op, grouped by family, in one table."""

from . import (
    convolution,
    create,
    index,
    linalg,
    loss,
    normalize,
    pointwise,
    pool,
    reduce,
    resize,
    scatter,
    shape,
    symint,
)
from .registry import TABLE

__all__ = ["TABLE"]

_FAMILIES = (
    convolution, create, index, linalg, loss, normalize, pointwise, pool, reduce, resize, scatter, shape, symint,
)  # fmt: skip
