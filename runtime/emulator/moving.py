"""Operators that only move elements, where onnx.reference lacks a form or is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pfvm.errors import UnsupportedOpError, describe_node

from .calls import Call

Array = np.ndarray

_MODES: dict[str, Any] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def pad(call: Call, inputs: Sequence[Array | None]) -> Array:
    """Pad; a negative amount cuts."""
    x = inputs[0]
    assert x is not None
    given = inputs[1] if len(inputs) > 1 else call.attribute("pads")
    amounts = np.asarray(given, np.int64).reshape(2, -1)
    axes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else np.arange(amounts.shape[1])
    before, after = [0] * x.ndim, [0] * x.ndim
    for k, axis in enumerate(np.ravel(axes)):
        before[axis], after[axis] = (int(amount) for amount in amounts[:, k])
    kept = [slice(max(0, -b), size - max(0, -a)) for b, a, size in zip(before, after, x.shape)]
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after)]
    mode = call.attribute("mode", "constant")
    if mode in _MODES:
        return np.pad(x[tuple(kept)], widths, mode=_MODES[mode])
    if mode != "constant":
        raise UnsupportedOpError(f"{describe_node(call.node)}: mode={mode!r} is none that ONNX has")
    value = inputs[2] if len(inputs) > 2 and inputs[2] is not None else call.attribute("value", 0.0)
    return np.pad(x[tuple(kept)], widths, constant_values=np.asarray(value).astype(x.dtype).reshape(()))


def concat(call: Call, inputs: Sequence[Array | None]) -> Array:
    """Concat along an axis."""
    return np.concatenate([x for x in inputs if x is not None], axis=call.attribute("axis", 1))


def gather(call: Call, inputs: Sequence[Array | None]) -> Array:
    """Gather: numpy's take, which counts negative indices from the end."""
    x, indices = inputs[0], inputs[1]
    assert x is not None and indices is not None
    return np.take(x, indices, axis=call.attribute("axis", 0))


def expand(call: Call, inputs: Sequence[Array | None]) -> Array:
    """Expand: broadcasts both ways."""
    x, shape = inputs[0], inputs[1]
    assert x is not None and shape is not None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape)))


def gather_elements(call: Call, inputs: Sequence[Array | None]) -> Array:
    """GatherElements: along the axis; along the others the indices may be fewer than the elements."""
    x, indices = inputs[0], inputs[1]
    assert x is not None and indices is not None
    axis = call.attribute("axis", 0) % x.ndim
    kept = tuple(slice(None) if i == axis else slice(0, size) for i, size in enumerate(indices.shape))
    return np.take_along_axis(x[kept], np.where(indices < 0, indices + x.shape[axis], indices), axis)


MOVING = {"Pad": pad, "Concat": concat, "Gather": gather, "Expand": expand, "GatherElements": gather_elements}
