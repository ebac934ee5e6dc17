"""Max and average pools over windows; forms that this leaves out go to onnx.reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .calls import Call
from .products import conv_pads, windows

Array = np.ndarray

POOLS = ("MaxPool", "AveragePool")


def has_own_form(call: Call) -> bool:
    """No indices asked for, and no window that begins in the padding behind the end."""
    named = sum(1 for value in call.node.outputs if value.name)
    return named == 1 and not call.attribute("ceil_mode", 0)


def pool(call: Call, inputs: Sequence[Array | None]) -> Array:
    """x [n, c, *spatial] → [n, c, *out]."""
    x = inputs[0]
    assert x is not None
    kernel = tuple(call.attribute("kernel_shape"))
    stride = tuple(call.attribute("strides", (1,) * len(kernel)))
    dilation = tuple(call.attribute("dilations", (1,) * len(kernel)))
    pads = [(0, 0), (0, 0), *conv_pads(call, x.shape[2:], kernel, stride, dilation)]
    inner = tuple(range(-len(kernel), 0))
    if call.op == "MaxPool":
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(np.int64).min
        return windows(np.pad(x, pads, constant_values=lowest), kernel, stride, dilation).max(axis=inner)
    total = windows(np.pad(x, pads), kernel, stride, dilation).sum(axis=inner)
    if call.attribute("count_include_pad", 0):
        return total / np.prod(kernel)
    inside = np.pad(np.ones((1, 1, *x.shape[2:])), pads)
    return total / windows(inside, kernel, stride, dilation).sum(axis=inner)
