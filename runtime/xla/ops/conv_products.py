"""Convolutions written as matrix products, where XLA's CPU convolution is slower (measured with jaxlib 0.10.2).

Operands are N, spatial, C and spatial, I, O.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from pfvm.runtime.xla.materialize import materialized
from pfvm.runtime.xla.ops.conv_winograd import outweighs_kernel, suits, suits_gradient, winograd, winograd_gradient
from pfvm.runtime.xla.ops.windows import Window
from pfvm.runtime.xla.platforms import traced_platform

# Few channels leave XLA's convolution idle: patches of up to so many numbers are 2 times faster as one product.
_PATCH = 32
_PATCH_BYTES = 8 << 20
# A kernel's gradient has few results, each a long sum. Up to so many, and so many bytes of views, are one product.
_FEW_RESULTS, _LEAST_CHANNELS = 64, 8
_VIEW_BYTES = 32 << 20

Product = Callable[[Any, Any], Any]


def product_for(
    shape: tuple[int, ...],
    dtype: Any,
    kernel: tuple[int, ...],
    window: Window,
    prepared: Callable[[], bool],
    swapped: bool = False,
) -> Product | None:
    """The product that computes a convolution of one group fastest, or None where the convolution itself does.

    `shape` and `kernel` are the operands', `prepared`: what follows from the kernel alone costs nothing, `swapped`: it
    is the gradient of a kernel, and the batch stands in the place of the channels.
    """
    if _is_tiling(window, shape[1:-1]):
        return _tiles_product
    if traced_platform() != "cpu" or dtype not in (np.float32, np.float64):
        return None
    if swapped:
        return _gradient_product(shape, dtype, kernel, window)
    outputs = window.output_size(shape[1:-1])
    large = shape[0] * math.prod(outputs) < kernel[-1] and not prepared()
    if large or any(k > n for k, n in zip(window.kernel, shape[1:-1])):  # XLA computes these one number after another
        return lambda x, w: _rows_product(x, w, window, large)
    if dtype != np.float32:
        return None
    values = math.prod(kernel[:-1])
    if math.prod(window.kernel) > 1 and values <= _PATCH and 4 * values * shape[0] * math.prod(outputs) <= _PATCH_BYTES:
        return lambda x, w: _patches_product(x, w, window)
    if suits(shape, kernel, window) and (outweighs_kernel(shape, kernel, window) or prepared()):
        return lambda x, w: winograd(x, w, window.pads)
    return None


def _gradient_product(shape: tuple[int, ...], dtype: Any, kernel: tuple[int, ...], window: Window) -> Product | None:
    """For the gradient of a kernel: few results are long sums, and the stride has become the dilation, for which XLA's
    convolution takes 2-6 times as long."""
    results = window.output_size(shape[1:-1])
    if dtype == np.float32 and suits_gradient(kernel[-2], window, results, (shape[0], kernel[-1])):
        return lambda x, w: _swapped(winograd_gradient, x, w, window.pads)
    if not 0 < math.prod(results) <= _FEW_RESULTS or shape[0] < _LEAST_CHANNELS:
        return None
    return lambda x, w: _swapped(_results_product, x, w, window)


def _swapped(function: Callable[..., Any], x: Any, w: Any, geometry: Any) -> Any:
    """The convolution, whose channels are the batch, from a function of N, spatial, C and N, spatial, O with the
    results O, C, spatial."""
    y = function(jnp.swapaxes(x, 0, -1), jnp.moveaxis(w, -2, 0), geometry)
    return jnp.moveaxis(y, (1, 0), (0, -1))


def _results_product(x: Any, dy: Any, window: Window) -> Any:
    """What each position of the results sums up, side by side, times `dy`: O, C, results."""
    padded, views = _padded_for_results(x, window)
    results = views.kernel
    rows = [views.shifted(padded, tap, first=1).reshape(-1, x.shape[-1]) for tap in views.taps()]
    columns = dy.reshape(-1, dy.shape[-1])
    if columns.shape[0] < columns.shape[1]:  # more results than operands: these are put in the results' order
        return _transposed_product(columns, _interleaved(rows)).reshape(-1, x.shape[-1], *results)
    if len(rows) * x.size * x.dtype.itemsize <= _VIEW_BYTES * math.prod(window.dilations):
        rows = [jnp.concatenate(rows, -1)]
    products = [_transposed_product(columns, part) for part in rows]
    return jnp.moveaxis(jnp.concatenate(products, -1).reshape(-1, *results, x.shape[-1]), -1, 1)


def depthwise_gradient(x: Any, w: Any, window: Window, group: int) -> Any | None:
    """The gradient of a kernel with one channel a group: 1, spatial, g·N and spatial, N, O → 1, results, O; None where
    it is not one, or has many results.

    Each result is a product and a sum over the images. As the convolution that it is in the model, with as many terms
    as the image has places, each a piece of code, it takes twice as long to compile.
    """
    results = window.output_size(x.shape[1:-1])
    few = 0 < math.prod(results) <= _FEW_RESULTS and x.shape[0] == 1
    if traced_platform() != "cpu" or x.dtype not in (np.float32, np.float64) or not few:
        return None
    _, *size, _ = x.shape
    data = jnp.moveaxis(x.reshape(*size, group, -1), -1, 0)  # N, spatial, g
    dy = jnp.moveaxis(w, -2, 0)
    padded, views = _padded_for_results(jnp.repeat(data, w.shape[-1] // group, -1), window)
    sums = [jnp.sum(views.shifted(padded, tap, first=1) * dy, tuple(range(dy.ndim - 1))) for tap in views.taps()]
    return jnp.stack(sums).reshape(1, *results, -1)


def _padded_for_results(x: Any, window: Window) -> tuple[Any, Window]:
    """N, spatial, C with the edges that the results of a kernel's gradient read, and the window of their positions."""
    results = window.output_size(x.shape[1:-1])
    reach = [
        (r - 1) * s + (k - 1) * d + 1 for r, s, k, d in zip(results, window.strides, window.kernel, window.dilations)
    ]
    ends = [(a, n - size - a, 0) for size, (a, _), n in zip(x.shape[1:-1], window.pads, reach)]
    padded = materialized(lax.pad(x, np.zeros((), x.dtype), ((0, 0, 0), *ends, (0, 0, 0))))
    return padded, Window(results, window.dilations, window.strides, ((0, 0),) * len(results))


def _interleaved(parts: list[Any]) -> Any:
    """`jnp.stack` along a last axis, as a concatenation of whole rows and a transposition: 4 times faster."""
    shape = parts[0].shape
    return jnp.swapaxes(jnp.concatenate(parts, -1).reshape(*shape[:-1], len(parts), shape[-1]), -1, -2)


def _transposed_product(columns: Any, rows: Any) -> Any:
    return lax.dot_general(columns, rows.reshape(rows.shape[0], -1), (((0,), (0,)), ((), ())))


def _rows_product(x: Any, w: Any, window: Window, large: bool) -> Any:
    """One product of patches and the kernel.

    large: the kernel is larger than the patches, which are put in the order that it has in the model: O, I, spatial.
    """
    pads = ((0, 0, 0), *((a, b, 0) for a, b in window.pads), (0, 0, 0))
    padded, views = materialized(lax.pad(x, np.zeros((), x.dtype), pads)), window.unpadded()
    parts = [views.shifted(padded, tap, first=1) for tap in window.taps()]
    rows = _interleaved(parts) if large else jnp.concatenate(parts, -1)
    columns = jnp.transpose(w, (w.ndim - 1, w.ndim - 2, *range(w.ndim - 2))) if large else jnp.moveaxis(w, -1, 0)
    columns = columns.reshape(w.shape[-1], -1)
    y = lax.dot_general(rows.reshape(-1, columns.shape[-1]), columns, (((1,), (1,)), ((), ())))
    return y.reshape(*parts[0].shape[:-1], w.shape[-1])


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
