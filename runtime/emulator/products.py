"""Gemm, MatMul and Conv as products of two operands a [batch, m, k] · b [batch, k, n]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pfvm.compiler.plan.mngraph import OVER_ROWS
from pfvm.errors import UnsupportedOpError, describe_node

from .arithmetic import Arithmetic
from .calls import Call
from .formats import Blocked

Array = np.ndarray
Dtypes = Sequence[str | None]  # the operands' device dtypes


def gemm(call: Call, arithmetic: Arithmetic, dtypes: Dtypes, inputs: Sequence[Array | None]) -> Array:
    """alpha · a' · b' + beta · c."""
    first, second = inputs[0], inputs[1]
    assert first is not None and second is not None
    a = first.T if call.attribute("transA", 0) else first
    b = second.T if call.attribute("transB", 0) else second
    total = _product(call, arithmetic, a[None], b[None], dtypes)[0]
    total = _scaled(total, call.attribute("alpha", 1.0))
    bias = inputs[2] if len(inputs) > 2 else None
    return total if bias is None else total + _scaled(bias, call.attribute("beta", 1.0))


def matmul(call: Call, arithmetic: Arithmetic, dtypes: Dtypes, inputs: Sequence[Array | None]) -> Array:
    """numpy's matmul: vectors are rows or columns, batch axes broadcast."""
    first, second = inputs[0], inputs[1]
    assert first is not None and second is not None
    a = first[None, :] if first.ndim == 1 else first
    b = second[:, None] if second.ndim == 1 else second
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = _product(call, arithmetic, _flat_batch(a, batch), _flat_batch(b, batch), dtypes)
    total = total.reshape(*batch, *total.shape[-2:])
    if first.ndim == 1:
        total = total[..., 0, :]
    return total[..., 0] if second.ndim == 1 else total


def conv(call: Call, arithmetic: Arithmetic, dtypes: Dtypes, inputs: Sequence[Array | None]) -> Array:
    """x [n, c, *spatial], w [o, c / group, *kernel]: blocks are channels of one tap."""
    x, w = inputs[0], inputs[1]
    assert x is not None and w is not None
    spatial = w.ndim - 2
    stride = tuple(call.attribute("strides", (1,) * spatial))
    dilation = tuple(call.attribute("dilations", (1,) * spatial))
    pads = conv_pads(call, x.shape[2:], w.shape[2:], stride, dilation)
    if _of_one_cell(call):
        result = _correlated(arithmetic, dtypes, x, w, stride, dilation, pads)
    else:
        result = _convolved(arithmetic, dtypes, x, w, call.attribute("group", 1), stride, dilation, pads)
    bias = inputs[2] if len(inputs) > 2 else None
    return result if bias is None else result + bias.reshape(-1, *(1,) * spatial)


def transposes_plainly(call: Call) -> bool:
    """Is it a ConvTranspose with its pads given, not those that would make a wanted shape?"""
    return call.attribute("auto_pad", "NOTSET") == "NOTSET" and call.attribute("output_shape") is None


def conv_transpose(call: Call, arithmetic: Arithmetic, dtypes: Dtypes, inputs: Sequence[Array | None]) -> Array:
    """x [n, c, *spatial], w [c, o / group, *kernel]: a convolution of x with zeros between its elements."""
    x, w = inputs[0], inputs[1]
    assert x is not None and w is not None
    group, spatial = call.attribute("group", 1), w.ndim - 2
    stride = tuple(call.attribute("strides", (1,) * spatial))
    dilation = tuple(call.attribute("dilations", (1,) * spatial))
    more = tuple(call.attribute("output_padding", (0,) * spatial))
    given = call.attribute("pads", (0,) * (2 * spatial))
    wide = np.zeros((*x.shape[:2], *((size - 1) * s + 1 for size, s in zip(x.shape[2:], stride))))
    wide[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = x
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
    pads = [(reach[i] - given[i], reach[i] - given[i + spatial] + more[i]) for i in range(spatial)]
    kept = [slice(max(0, -before), size - max(0, -after)) for (before, after), size in zip(pads, wide.shape[2:])]
    wide = wide[(slice(None), slice(None), *kept)]
    parts = np.flip(w, tuple(range(2, w.ndim))).reshape(group, -1, *w.shape[1:])
    kernels = np.swapaxes(parts, 1, 2).reshape(-1, w.shape[0] // group, *w.shape[2:])
    ones = (1,) * spatial
    inner = [(max(0, before), max(0, after)) for before, after in pads]
    result = _convolved(arithmetic, dtypes, wide, kernels, group, ones, dilation, inner)
    bias = inputs[2] if len(inputs) > 2 else None
    return result if bias is None else result + bias.reshape(-1, *ones)


def _convolved(
    arithmetic: Arithmetic,
    dtypes: Dtypes,
    x: Array,
    w: Array,
    group: int,
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> Array:
    """[n, o, *out]: the product of patches and taps, accumulated."""
    kernel, spatial = w.shape[2:], w.ndim - 2
    images, channels, outs = x.shape[0], w.shape[1], w.shape[0]
    # Channels last, so that the channels of a tap stand together and each is rounded in its block.
    rows = np.moveaxis(x.reshape(images, group, channels, *x.shape[2:]), 2, -1)
    rows = np.moveaxis(rows, 1, 0)  # [group, n, *spatial, channels]
    blocked = arithmetic.blocks(np.pad(rows, [(0, 0), (0, 0), *pads, (0, 0)]), -1, dtypes[0])
    # [group, n, *out, *kernel, channels]
    patches = np.moveaxis(windows(blocked.values, kernel, stride, dilation), 2 + spatial, -1)
    out_spatial = patches.shape[2 : 2 + spatial]
    a = Blocked(patches.reshape(group, images * _size(out_spatial), -1), blocked.step)
    taps = arithmetic.blocks(np.moveaxis(w, 1, -1), -1, dtypes[1])  # [o, *kernel, channels]
    columns = taps.values.reshape(group, outs // group, -1)
    total = arithmetic.product(a, Blocked(np.swapaxes(columns, 1, 2), taps.step))  # [group, n·spatial, o / group]
    result = total.reshape(group, images, *out_spatial, outs // group)
    return np.moveaxis(np.moveaxis(result, 0, -2).reshape(images, *out_spatial, outs), -1, 1)


def _product(call: Call, arithmetic: Arithmetic, a: Array, b: Array, dtypes: Dtypes) -> Array:
    most = _of_one_cell(call)
    return arithmetic.product(arithmetic.blocks(a, -1, dtypes[0], most), arithmetic.blocks(b, -2, dtypes[1], most))


def _of_one_cell(call: Call) -> int | None:
    """How many positions of the contracted axis one cell has in a row, where it is dealt to cells as rows are."""
    given = call.node.metadata_props.get(OVER_ROWS)
    return None if given is None else int(given)


def _correlated(
    arithmetic: Arithmetic,
    dtypes: Dtypes,
    x: Array,
    w: Array,
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> Array:
    """Like `_convolved` without groups where each cell has whole channels: blocks are taps of one channel."""
    found = windows(np.pad(x, [(0, 0), (0, 0), *pads]), w.shape[2:], stride, dilation)  # [n, c, *out, *kernel]
    out = found.shape[2 : w.ndim]
    taps, channels = _size(w.shape[2:]), w.shape[1]
    patches = np.moveaxis(found.reshape(x.shape[0], channels, _size(out), taps), 1, -1)  # [n, out, taps, c]
    a = arithmetic.blocks(patches, -2, dtypes[0])
    b = arithmetic.blocks(np.moveaxis(w.reshape(w.shape[0], channels, taps), 1, -1), -2, dtypes[1])  # [o, taps, c]
    rows = Blocked(a.values.reshape(1, -1, taps * channels), a.step)
    columns = Blocked(b.values.reshape(1, -1, taps * channels).swapaxes(1, 2), b.step)
    total = arithmetic.product(rows, columns)[0]
    return np.moveaxis(total.reshape(x.shape[0], *out, w.shape[0]), -1, 1)


def _scaled(x: Array, factor: float) -> Array:
    """Integers by a whole factor stay integers."""
    if x.dtype.kind in "iu" and float(factor).is_integer():
        return x * np.array(int(factor) % 2**64, np.uint64).astype(x.dtype)  # −1, of unsigned ones, is the highest
    return x if factor == 1.0 else x * factor


def _flat_batch(x: Array, batch: tuple[int, ...]) -> Array:
    """[*batch or 1s, m, k] → [flat or 1, m, k]."""
    if _size(x.shape[:-2]) == 1:
        return x.reshape(1, *x.shape[-2:])
    return np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:])


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """[a, b, *spatial, …] → [a, b, *out, …, *kernel]: a view."""
    spatial = len(kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    found = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + spatial)))
    index: list[Any] = [slice(None)] * 2 + [slice(None, None, s) for s in stride]
    index += [slice(None)] * (x.ndim - 2 - spatial) + [slice(None, None, d) for d in dilation]
    return found[tuple(index)]


def conv_pads(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """(before, after) per spatial axis."""
    mode = call.attribute("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = call.attribute("pads", (0,) * (2 * len(kernel)))
        return list(zip(pads[: len(kernel)], pads[len(kernel) :]))
    if mode == "VALID":
        return [(0, 0)] * len(kernel)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedOpError(f"{describe_node(call.node)}: auto_pad={mode!r} is none that ONNX has")
    result = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation):
        needed = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        less, more = needed // 2, needed - needed // 2
        result.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return result
