"""3x3 convolutions of stride 1, and the gradients of their kernels, in Winograd's form. Float32 on CPUs.

Operands are N, spatial, C and spatial, I, O. The data is cut into tiles of 4x4 that overlap by 2, and 16 products of
matrices take the place of 36: https://arxiv.org/abs/1509.09308. The transforms before and after are sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pfvm.runtime.xla.materialize import materialized
from pfvm.runtime.xla.ops.windows import Window

# It takes 0.5-0.8 of the time between these bounds; beyond them it waits for memory.
_LEAST_CHANNELS = 32
_FEW_TILES, _FEWEST_TILES = 32, 16
_TRANSFORMED_BYTES = 16 << 20


def suits(shape: tuple[int, ...], kernel: tuple[int, ...], window: Window) -> bool:
    """Is the convolution one of these, and faster so, where its kernel is transformed before?"""
    *taps, channels, results = kernel
    if taps != [3, 3] or {*window.strides, *window.dilations} != {1} or min(channels, results) < _LEAST_CHANNELS:
        return False
    tiles = _tiles(shape[0], window.output_size(shape[1:-1]))
    if 64 * tiles * max(channels, results) > _TRANSFORMED_BYTES:
        return False
    return tiles >= _FEW_TILES or (tiles >= _FEWEST_TILES and 64 * channels * results <= _TRANSFORMED_BYTES // 2)


def outweighs_kernel(shape: tuple[int, ...], kernel: tuple[int, ...], window: Window) -> bool:
    """Is it faster also where the kernel is transformed in every call, for it changes? The kernel is the smaller part
    where there are more tiles than channels (measured with 64-512 channels on images of 16x16 to 2x2)."""
    return _tiles(shape[0], window.output_size(shape[1:-1])) >= max(kernel[-2:])


def suits_gradient(batch: int, window: Window, results: Sequence[int], channels: Sequence[int]) -> bool:
    """Is the gradient of a kernel of 3x3, `results`, faster so? `window` has the size of the output's gradient."""
    if tuple(results) != (3, 3) or {*window.strides, *window.dilations} != {1} or min(channels) < _LEAST_CHANNELS:
        return False
    tiles = _tiles(batch, window.kernel)
    return tiles >= max(channels) and 64 * tiles * max(channels) <= _TRANSFORMED_BYTES


def _tiles(batch: int, size: Sequence[int]) -> int:
    return batch * math.prod(-(-n // 2) for n in size)


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
    n, *size, _ = x.shape
    wanted = [length + a + b - 2 for length, (a, b) in zip(size, pads)]
    rows, columns = counts = [-(-length // 2) for length in wanted]
    products = jnp.matmul(_data_tiles(x, pads, counts), kernels).reshape(4, 4, n, rows, columns, -1)
    by_row = materialized(jnp.stack(_from_tiles(products), 1))  # 4, 2, n, rows, columns, outputs
    y = jnp.moveaxis(jnp.stack(_from_tiles(by_row), 4), 0, 2)  # n, rows, 2, columns, 2, outputs
    return y.reshape(n, 2 * rows, 2 * columns, -1)[:, : wanted[0], : wanted[1]]


def winograd_gradient(x: Any, dy: Any, pads: tuple[tuple[int, int], ...]) -> Any:
    """The gradient of the kernel in `winograd`: results, channels, 3, 3. `dy` is that of the output: N, spatial, O.

    Where a number is none, all nine of its channels' gradients are none.
    """
    return _gradient(x, dy, pads)


@functools.partial(jax.jit, static_argnums=2)
def _gradient(x: Any, dy: Any, pads: tuple[tuple[int, int], ...]) -> Any:
    counts = [-(-length // 2) for length in dy.shape[1:-1]]
    extended = [(0, 2 * count - length) for count, length in zip(counts, dy.shape[1:-1])]
    ends = ((0, 0, 0), *((a, b, 0) for a, b in extended), (0, 0, 0))
    even = materialized(lax.pad(dy, np.zeros((), dy.dtype), ends))
    by_row = materialized(jnp.stack(_spread([even[:, i::2] for i in range(2)])))
    outputs = jnp.stack(_spread([by_row[:, :, :, j::2] for j in range(2)]), 1)
    tiles = _data_tiles(x, pads, counts)
    products = lax.dot_general(outputs.reshape(16, -1, dy.shape[-1]), tiles, (((1,), (1,)), ((0,), (0,)))).reshape(
        4, 4, dy.shape[-1], x.shape[-1]
    )
    rows = materialized(jnp.stack(_gathered(products)))
    return jnp.transpose(jnp.stack(_gathered(jnp.swapaxes(rows, 0, 1)), 1), (2, 3, 0, 1))


def _data_tiles(x: Any, pads: Sequence[tuple[int, int]], counts: Sequence[int]) -> Any:
    """16, tiles, channels: the transformed tiles, `counts` of them along each axis.

    Rows first, then columns, each from memory: XLA would compute each of the 16 from what stands before `x` anew, in a
    piece of code of its own, and take as long to compile it as a thousand steps take.
    """
    n, *size, c = x.shape
    rows, columns = counts
    extended = [(a, 2 * count + 2 - length - a) for length, count, (a, _) in zip(size, counts, pads)]
    padded = materialized(lax.pad(x, np.zeros((), x.dtype), ((0, 0, 0), *((a, b, 0) for a, b in extended), (0, 0, 0))))
    by_row = materialized(jnp.stack(_to_tiles([padded[:, i : i + 2 * rows : 2] for i in range(4)])))
    tiles = jnp.stack(_to_tiles([by_row[:, :, :, j : j + 2 * columns : 2] for j in range(4)]), 1)
    return tiles.reshape(16, n * rows * columns, c)


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


def _spread(x: Sequence[Any]) -> list[Any]:
    """What `_from_tiles` adds up, backwards."""
    return [x[0], x[0] + x[1], x[0] - x[1], -x[1]]


def _gathered(x: Any) -> list[Any]:
    """`_kernel_tiles` backwards."""
    half = np.asarray(0.5, x.dtype)
    total, difference = (x[1] + x[2]) * half, (x[1] - x[2]) * half
    return [x[0] + total, difference, total + x[3]]
