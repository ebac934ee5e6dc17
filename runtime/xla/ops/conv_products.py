"""Convolutions written as matrix products, where XLA's CPU convolution is slower (measured with jaxlib 0.10.2).

Operands are N, spatial, C and spatial, I, O.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pfvm.runtime.xla.ops.windows import Window
from pfvm.runtime.xla.platforms import traced_platform

# Few channels leave XLA's convolution idle: patches of up to so many numbers are 2 times faster as one product.
_PATCH = 32
# Winograd's form takes 0.5-0.8 of the time between these bounds; beyond them it waits for memory.
_LEAST_CHANNELS = 32
_FEW_TILES, _FEWEST_TILES = 32, 16
_TRANSFORMED_BYTES = 16 << 20
_PATCH_BYTES = 8 << 20

Product = Callable[[Any, Any], Any]


def product_for(
    shape: tuple[int, ...], dtype: Any, kernel: tuple[int, ...], window: Window, prepared: Callable[[], bool]
) -> Product | None:
    """The product that computes a convolution of one group fastest, or None where the convolution itself does.

    `shape` and `kernel` are the operands', `prepared`: what follows from the kernel alone costs nothing.
    """
    if _is_tiling(window, shape[1:-1]):
        return _tiles_product
    if traced_platform() != "cpu" or dtype != np.float32:
        return None
    outputs = window.output_size(shape[1:-1])
    values = math.prod(kernel[:-1])
    if math.prod(window.kernel) > 1 and values <= _PATCH and 4 * values * shape[0] * math.prod(outputs) <= _PATCH_BYTES:
        return lambda x, w: _patches_product(x, w, window)
    return (lambda x, w: winograd(x, w, window.pads)) if _suits_winograd(shape, kernel, window) and prepared() else None


def _suits_winograd(shape: tuple[int, ...], kernel: tuple[int, ...], window: Window) -> bool:
    *taps, channels, results = kernel
    if taps != [3, 3] or {*window.strides, *window.dilations} != {1} or min(channels, results) < _LEAST_CHANNELS:
        return False
    tiles = shape[0] * math.prod(-(-n // 2) for n in window.output_size(shape[1:-1]))
    if 64 * tiles * max(channels, results) > _TRANSFORMED_BYTES:
        return False
    return tiles >= _FEW_TILES or (tiles >= _FEWEST_TILES and 64 * channels * results <= _TRANSFORMED_BYTES // 2)


def _is_tiling(window: Window, size: tuple[int, ...]) -> bool:
    """Do the windows cut the operand into patches that neither overlap nor leave anything out?"""
    whole = all(n % k == 0 for n, k in zip(size, window.kernel))
    plain_window = not any(map(any, window.pads)) and max(window.dilations, default=1) == 1
    return whole and plain_window and window.kernel == window.strides and math.prod(window.kernel) > 1


def _tiles_product(x: Any, w: Any) -> Any:
    """One product of the patches and the kernel, where `_is_tiling`."""
    n, *size, c = x.shape
    *kernel, _, outputs = w.shape
    counts = [length // k for length, k in zip(size, kernel)]
    split = x.reshape(n, *(length for pair in zip(counts, kernel) for length in pair), c)
    rank = len(size)
    order = (0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), 2 * rank + 1)
    rows = jnp.transpose(split, order).reshape(n * math.prod(counts), -1)
    return jnp.matmul(rows, w.reshape(-1, outputs)).reshape(n, *counts, outputs)


def _patches_product(x: Any, w: Any, window: Window) -> Any:
    """One product of overlapping patches and the kernel: for few channels."""
    pads = ((0, 0, 0), *((a, b, 0) for a, b in window.pads), (0, 0, 0))
    padded = lax.pad(x, np.zeros((), x.dtype), pads)
    *outer, (kernel, stride, dilation) = zip(window.kernel, window.strides, window.dilations)
    if dilation == 1:
        padded = _last_axis_patches(padded, kernel, stride)
    else:
        outer.append((kernel, stride, dilation))
    kernels, strides, dilations = zip(*outer) if outer else ((), (), ())
    rest = Window(kernels, strides, dilations, ((0, 0),) * len(outer))
    rows = jnp.concatenate([rest.shifted(padded, tap, first=1) for tap in rest.taps()], -1)
    return jnp.matmul(rows, w.reshape(-1, w.shape[-1]))


def _last_axis_patches(x: Any, kernel: int, stride: int) -> Any:
    """Windows along the last spatial axis, side by side in the channels, copied in groups of `stride` elements."""
    *before, length, channels = x.shape
    count, groups = (length - kernel) // stride + 1, -(-kernel // stride)
    wanted = (count - 1 + groups) * stride
    whole = lax.pad(x, np.zeros((), x.dtype), (*((0, 0, 0) for _ in before), (0, wanted - length, 0), (0, 0, 0)))
    grouped = whole.reshape(*before, count - 1 + groups, stride * channels)
    rows = jnp.concatenate([grouped[..., g : g + count, :] for g in range(groups)], -1)
    return rows[..., : kernel * channels]


def winograd(x: Any, w: Any, pads: tuple[tuple[int, int], ...]) -> Any:
    """A 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3): 16 products for each 2x2 outputs instead of 36.

    The transforms of data and results only add. Its errors are those of float32 sums. An infinity or NaN reaches the
    outputs that it reaches in any convolution, but what would be infinite may be NaN.
    """
    return _tiled(x, _transformed(w), pads)


@jax.jit  # one step, which runs when the model is loaded
def _transformed(w: Any) -> Any:
    return _kernel_tiles(_kernel_tiles(w, 0), 1).reshape(16, *w.shape[2:])


@functools.partial(jax.jit, static_argnums=2)  # traced once for each shape
def _tiled(x: Any, kernels: Any, pads: tuple[tuple[int, int], ...]) -> Any:
    n, *size, c = x.shape
    counts = [(length + a + b - 2 + 1) // 2 for length, (a, b) in zip(size, pads)]
    extended = [(a, 2 * count + 2 - length - a) for length, count, (a, _) in zip(size, counts, pads)]
    padded = lax.pad(x, np.zeros((), x.dtype), ((0, 0, 0), *((a, b, 0) for a, b in extended), (0, 0, 0)))
    rows, columns = counts
    by_row = _to_tiles([padded[:, i : i + 2 * rows : 2] for i in range(4)])
    tiles = [t for row in by_row for t in _to_tiles([row[:, :, j : j + 2 * columns : 2] for j in range(4)])]
    stacked = jnp.stack(tiles).reshape(16, n * rows * columns, c)
    products = jnp.matmul(stacked, kernels).reshape(4, 4, n, rows, columns, -1)
    halves = [jnp.stack(_from_tiles(row), 3) for row in _from_tiles(products)]  # n, rows, columns, 2, outputs
    y = jnp.stack(halves, 2).reshape(n, 2 * rows, 2 * columns, -1)
    return y[:, : size[0] + sum(pads[0]) - 2, : size[1] + sum(pads[1]) - 2]


def _kernel_tiles(w: Any, axis: int) -> Any:
    """The kernel with 4 instead of 3 along an axis, in steps that `prepared` can run before."""
    half = np.asarray(0.5, w.dtype)
    first, middle, last = (lax.slice_in_dim(w, i, i + 1, axis=axis) for i in range(3))
    even, odd = (first + last) * half, middle * half
    return lax.concatenate([first, even + odd, even - odd, last], axis)


def _to_tiles(x: Sequence[Any]) -> list[Any]:
    return [x[0] - x[2], x[1] + x[2], x[2] - x[1], x[1] - x[3]]


def _from_tiles(x: Any) -> list[Any]:
    return [x[0] + x[1] + x[2], x[1] - x[2] - x[3]]
