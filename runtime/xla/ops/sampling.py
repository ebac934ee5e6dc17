"""Sampling images at computed positions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.resize import cubic
from pfvm.runtime.xla.registry import register

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def grid_sample(ctx: Context, node: ir.Node, x: Any, grid: Any) -> Any:
    """x: N, C, spatial; grid: N, output spatial, coordinates in [-1, 1] (last spatial axis first)."""
    mode = _MODES.get(ctx.attr("mode"), ctx.attr("mode"))
    align = bool(ctx.attr("align_corners"))
    padding = ctx.attr("padding_mode")
    sizes = x.shape[2:]
    wide = grid.astype(jnp.promote_types(grid.dtype, jnp.float32))
    positions = [_position(wide[..., len(sizes) - 1 - i], n, align) for i, n in enumerate(sizes)]
    if mode != "cubic":
        positions = [_bounded(p, n, padding, align) for p, n in zip(positions, sizes)]
    if mode == "nearest":
        return read_at(x, [jnp.round(p) for p in positions], padding, align).astype(x.dtype)
    taps = 2 if mode == "linear" else 4
    total: Any = 0
    for offsets in itertools.product(range(taps), repeat=len(sizes)):
        index: list[Any] = []
        weight: Any = 1.0
        for offset, position in zip(offsets, positions):
            first = jnp.floor(position) - (taps // 2 - 1)
            index.append(first + offset)
            distance = jnp.abs(position - first - offset)
            weight = weight * (1 - distance if mode == "linear" else cubic(jnp, distance, -0.75))
        total = total + read_at(x, index, padding, align) * jnp.expand_dims(jnp.asarray(weight), 1)
    return total.astype(x.dtype)


def _position(coordinate: Any, size: int, align: bool) -> Any:
    return (coordinate + 1) / 2 * (size - 1) if align else ((coordinate + 1) * size - 1) / 2


def _bounded(position: Any, size: int, padding: str, align: bool) -> Any:
    """Where a position outside the image is taken from; "zeros" leaves it there, to read zero."""
    if padding == "border":
        return jnp.clip(position, 0, size - 1)
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        span = high - low
        if span == 0:
            return jnp.zeros_like(position)
        away = jnp.abs(position - low) % (2 * span)
        return jnp.clip(low + jnp.where(away > span, 2 * span - away, away), 0, size - 1)
    return position


def read_at(x: Any, index: list[Any], padding: str = "zeros", align: bool = False) -> Any:
    """x at whole-number positions, outside ones by the padding mode. Result: N, C, output spatial."""
    sizes = x.shape[2:]
    index = [_bounded(i, n, padding, align) for i, n in zip(index, sizes)]
    inside = jnp.ones(index[0].shape, bool)
    for i, n in zip(index, sizes):
        inside &= (i >= 0) & (i <= n - 1)
    whole = [jnp.clip(i, 0, n - 1).astype(jnp.int64) for i, n in zip(index, sizes)]
    batch = jnp.arange(x.shape[0]).reshape((-1,) + (1,) * (whole[0].ndim - 1))
    taken = jnp.moveaxis(jnp.asarray(x)[(batch, slice(None), *whole)], -1, 1)
    return jnp.where(jnp.expand_dims(inside, 1), taken, np.zeros((), x.dtype))


def col2im(ctx: Context, node: ir.Node, x: Any, image_shape: Any, block_shape: Any) -> Any:
    """Sums overlapping blocks back into an image. x: N, C · block elements, blocks."""
    image, block = ctx.ints(image_shape), ctx.ints(block_shape)
    rank = len(image)
    dilations = ctx.attr("dilations", None) or [1] * rank
    strides = ctx.attr("strides", None) or [1] * rank
    pads = ctx.attr("pads", None) or [0] * (2 * rank)
    padded = [n + a + b for n, a, b in zip(image, pads[:rank], pads[rank:])]
    counts = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded, block, dilations, strides)]
    cells = x.reshape(x.shape[0], -1, *block, *counts)
    y = jnp.zeros((x.shape[0], x.shape[1] // math.prod(block), *padded), x.dtype)
    for tap in itertools.product(*(range(k) for k in block)):
        place = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, counts, strides))
        y = y.at[(slice(None), slice(None), *place)].add(cells[(slice(None), slice(None), *tap)])
    return y[(slice(None), slice(None), *(slice(a, a + n) for a, n in zip(pads[:rank], image)))]


register("GridSample", since=16)(grid_sample)
register("Col2Im", since=18)(col2im)
