"""Pooling over regions of interest and convolutions whose taps move: both read images at computed positions."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.sampling import read_at
from pfvm.runtime.xla.ops.windows import check_fits, read_window
from pfvm.runtime.xla.registry import register


class _Axis(NamedTuple):
    """One spatial axis of every region: first coordinate, size of a bin, samples in a bin; all of shape (regions,)."""

    start: Any
    step: Any
    samples: Any
    bins: int
    size: int

    def position(self, sample: Any) -> Any:
        """(regions, bins) coordinates of sample number `sample` of every bin."""
        within = (sample + 0.5) / jnp.maximum(self.samples, 1).astype(self.step.dtype)
        return self.start[:, None] + (jnp.arange(self.bins) + within[:, None]) * self.step[:, None]


def roi_align(ctx: Context, node: ir.Node, x: Any, rois: Any, batch: Any) -> Any:
    """rois: (regions, 4) as x1, y1, x2, y2. Bilinear samples in each bin, averaged or maximized.

    Before opset 16 coordinates are not shifted by half a pixel. sampling_ratio=0 takes as many samples as a bin has
    pixels, which depends on the region: the loops over samples end with the largest region.
    """
    half_pixel = ctx.opset >= 16 and ctx.attr("coordinate_transformation_mode") == "half_pixel"
    bins = (ctx.attr("output_height"), ctx.attr("output_width"))
    wide = jnp.promote_types(x.dtype, jnp.float32)
    scaled = rois.astype(wide) * np.asarray(ctx.attr("spatial_scale"), wide) - (0.5 if half_pixel else 0.0)
    axes = []
    for i, (count, size) in enumerate(zip(bins, x.shape[2:])):
        start, end = scaled[:, 1 - i], scaled[:, 3 - i]
        length = end - start if half_pixel else jnp.maximum(end - start, 1)
        step = length / count
        ratio = ctx.attr("sampling_ratio") or 0
        samples = jnp.full(start.shape, ratio, jnp.int32) if ratio > 0 else jnp.ceil(step).astype(jnp.int32)
        axes.append(_Axis(start, step, samples, count, size))
    largest = ctx.attr("mode").lower() == "max"
    images = x.astype(wide)[jnp.clip(batch, 0, x.shape[0] - 1)]
    total = _over_samples(images, axes[0], axes[1], largest)
    count = jnp.maximum(axes[0].samples * axes[1].samples, 1).astype(wide).reshape(-1, 1, 1, 1)
    return (total if largest else total / count).astype(x.dtype)


def _over_samples(images: Any, rows: _Axis, columns: _Axis, largest: bool) -> Any:
    """Sum or maximum over the samples of each bin: (regions, channels, bins, bins)."""

    def sample(row: Any, column: Any, so_far: Any) -> Any:
        used = ((row < rows.samples) & (column < columns.samples)).reshape(-1, 1, 1, 1)
        value = _bilinear(images, rows, rows.position(row), columns, columns.position(column), largest)
        if largest:
            return jnp.where(used & ((row + column == 0) | (value > so_far)), value, so_far)
        return so_far + jnp.where(used, value, 0)

    def row_loop(row: Any, so_far: Any) -> Any:
        return lax.fori_loop(0, jnp.max(columns.samples, initial=0), lambda c, acc: sample(row, c, acc), so_far)

    start = jnp.zeros((*images.shape[:2], rows.bins, columns.bins), images.dtype)
    return lax.fori_loop(0, jnp.max(rows.samples, initial=0), row_loop, start)


def _bilinear(images: Any, rows: _Axis, y: Any, columns: _Axis, x: Any, largest: bool) -> Any:
    """Outside by more than a pixel: zero. The maximum form takes the largest weighted corner, not their sum."""
    inside = ((y >= -1) & (y <= rows.size))[:, :, None] & ((x >= -1) & (x <= columns.size))[:, None, :]
    corners = [_corners(p, axis.size) for p, axis in ((y, rows), (x, columns))]
    region = jnp.arange(images.shape[0])[:, None, None]
    terms = []
    for (i, a), (j, b) in itertools.product(*corners):
        value = images[region, :, i[:, :, None], j[:, None, :]]  # (regions, bins, bins, channels)
        weight = a[:, :, None] * b[:, None, :]
        terms.append(value * jnp.where(inside, weight, 0)[..., None])
    combined = jnp.stack(terms).max(0) if largest else sum(terms)
    return jnp.moveaxis(jnp.asarray(combined), -1, 1)


def _corners(position: Any, size: int) -> list[tuple[Any, Any]]:
    """The two neighbours along one axis and their weights; clamped to the image."""
    clamped = jnp.clip(position, 0, size - 1)
    low = jnp.floor(clamped)
    share = clamped - low
    first = low.astype(jnp.int32)
    return [(first, 1 - share), (jnp.minimum(first + 1, size - 1), share)]


def max_roi_pool(ctx: Context, node: ir.Node, x: Any, rois: Any) -> Any:
    """rois: (regions, 5) as batch, x1, y1, x2, y2, in whole pixels after scaling; empty bins give 0."""
    scale = np.float32(ctx.attr("spatial_scale"))
    lowest = np.asarray(-np.inf, x.dtype)

    def bins(start: Any, end: Any, count: int, size: int) -> Any:
        """(count, size): which pixels each bin covers."""
        step = jnp.maximum(end - start + 1, 1) / np.float32(count)
        first = jnp.clip(jnp.floor(jnp.arange(count) * step) + start, 0, size)
        last = jnp.clip(jnp.ceil((jnp.arange(count) + 1) * step) + start, 0, size)
        pixel = jnp.arange(size)
        return (pixel >= first[:, None]) & (pixel < last[:, None])

    def pool(roi: Any) -> Any:
        corners = roi[1:].astype(jnp.float32) * scale
        x1, y1, x2, y2 = jnp.sign(corners) * jnp.floor(jnp.abs(corners) + 0.5)  # halves away from zero
        image = jnp.asarray(x)[roi[0].astype(jnp.int32)]
        rows = bins(y1, y2, ctx.attr("pooled_shape")[0], image.shape[1])
        columns = bins(x1, x2, ctx.attr("pooled_shape")[1], image.shape[2])
        narrow = jnp.max(jnp.where(columns[:, None, None, :], image, lowest), -1)  # (bins, channels, rows)
        pooled = jnp.max(jnp.where(rows[:, None, None, :], narrow, lowest), -1)  # (bins, bins, channels)
        empty = ~(rows.any(-1)[:, None] & columns.any(-1)[None, :])
        return jnp.where(empty, jnp.zeros((), x.dtype), jnp.moveaxis(pooled, -1, 0))

    return lax.map(pool, rois)


def deform_conv(ctx: Context, node: ir.Node, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None) -> Any:
    """A convolution that reads each tap at its position plus an offset, bilinearly, and may scale it by a mask."""
    n, channels, *size = x.shape
    kernel = tuple(w.shape[2:])
    rank, taps, parts = len(size), math.prod(kernel), ctx.attr("offset_group") or 1
    window = read_window(ctx, tuple(size), kernel)
    check_fits(ctx, tuple(size), window)
    out = window.output_size(tuple(size))
    moves = offset.reshape(n * parts, taps, rank, *out)
    positions = []
    for i in range(rank):
        along = (slice(None), *(None if j != i else slice(None) for j in range(rank)))
        tap = np.asarray([t[i] for t in window.taps()]) * window.dilations[i] - window.pads[i][0]
        grid = np.arange(out[i]) * window.strides[i]
        fixed = tap.reshape((-1,) + (1,) * rank) + grid[along[1:]]
        positions.append(moves[:, :, i] + fixed.astype(moves.dtype))
    columns = _linear(x.reshape(n * parts, channels // parts, *size), positions)
    columns = columns.reshape(n, parts, channels // parts, taps, *out)
    if mask is not None:
        columns = columns * mask.reshape(n, parts, 1, taps, *out)
    group = ctx.attr("group") or 1
    columns = columns.reshape(n, group, channels // group * taps, math.prod(out))
    y = jnp.einsum("ngkp,gok->ngop", columns, w.reshape(group, w.shape[0] // group, -1)).reshape(n, w.shape[0], *out)
    return (y if bias is None else y + bias.reshape((1, -1) + (1,) * rank)).astype(x.dtype)


def _linear(x: Any, positions: list[Any]) -> Any:
    """x (N, C, spatial) at fractional positions (N, …), zero outside: (N, C, …)."""
    total: Any = 0
    floors = [jnp.floor(p) for p in positions]
    for corner in itertools.product((0, 1), repeat=len(positions)):
        weight: Any = 1
        for c, p, low in zip(corner, positions, floors):
            weight = weight * (p - low if c else 1 - (p - low))
        total = total + read_at(x, [low + c for c, low in zip(corner, floors)]) * jnp.expand_dims(weight, 1)
    return total


def crop_and_resize(ctx: Context, node: ir.Node, x: Any, rois: Any, batch: Any, crop_size: Any) -> Any:
    """com.microsoft: rois (regions, 4) as y1, x1, y2, x2 in [0, 1]; the corners of a crop lie on pixels."""
    counts, sizes = ctx.ints(crop_size), x.shape[2:]
    fill = np.asarray(ctx.attr("extrapolation_value", 0.0), x.dtype)
    nearest = ctx.attr("mode", "bilinear") == "nearest"

    def crop(roi: Any, index: Any) -> Any:
        positions = [_crop_positions(roi[i], roi[i + 2], counts[i], sizes[i]) for i in range(2)]
        outside = [(p < 0) | (p > n - 1) for p, n in zip(positions, sizes)]
        taps = [_nearest(p) if nearest else _corners(p, n) for p, n in zip(positions, sizes)]
        image = jnp.asarray(x)[index]
        value: Any = 0
        for (i, a), (j, b) in itertools.product(*taps):
            value = value + image[:, i[:, None], j[None, :]] * (a[:, None] * b[None, :])
        return jnp.where(outside[0][:, None] | outside[1][None, :], fill, value).astype(x.dtype)

    return jax.vmap(crop)(rois, batch)


def _nearest(position: Any) -> list[tuple[Any, Any]]:
    return [(jnp.floor(position + 0.5).astype(jnp.int32), jnp.ones_like(position))]


def _crop_positions(start: Any, end: Any, count: int, size: int) -> Any:
    if count == 1:
        return (0.5 * (start + end) * (size - 1))[None]
    return start * (size - 1) + jnp.arange(count) * ((end - start) * (size - 1) / (count - 1))


register("RoiAlign", since=10)(roi_align)
register("MaxRoiPool")(max_roi_pool)
register("DeformConv", since=19)(deform_conv)
register("CropAndResize", domain="com.microsoft")(crop_and_resize)
