"""ATen op → ONNX nodes: one small function per op, grouped by family, in one table."""

# Importing a family registers its rules.
from . import (  # noqa: F401
    activation,
    arithmetic,
    cast,
    convolution,
    create,
    index,
    linalg,
    logic,
    loss,
    marks,
    normalize,
    pool,
    reduce,
    resize,
    scatter,
    shape,
    symint,
    view_copies,  # last: it reads the table
)
from .registry import TABLE

__all__ = ["TABLE"]
