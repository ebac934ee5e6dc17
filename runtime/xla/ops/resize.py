"""Resize and Upsample: separable interpolation, one axis at a time."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def upsample(ctx: Context, node: ir.Node, x: Any, scales: Any = None) -> Any:
    """The predecessor of Resize: asymmetric coordinates, nearest takes the floor."""
    if scales is not None:
        factors = [float(s) for s in ctx.concrete(scales)]
    elif ctx.has_attr("scales"):
        factors = [float(s) for s in ctx.attr("scales")]
    else:
        factors = [1.0, 1.0, ctx.attr("height_scale"), ctx.attr("width_scale")]
    kind = {"bilinear": "linear"}.get(ctx.attr("mode"), ctx.attr("mode"))
    y = x
    for axis, factor in enumerate(factors):
        y = _interpolate(ctx, y, axis, math.floor(x.shape[axis] * factor), factor, kind, "asymmetric", "floor")
    return _narrowed(ctx, y, x.dtype)


def resize(ctx: Context, node: ir.Node, x: Any, *parameters: Any) -> Any:
    """Opset 10: (scales); from 11 on: (roi, scales, sizes), with `axes` naming the axes they speak of (18)."""
    if ctx.opset < 11:
        roi, scales, sizes = None, parameters[0], None
    else:
        roi, scales, sizes = (*parameters, None, None, None)[:3]
    axes = [a % x.ndim for a in ctx.attr("axes", None) or range(x.ndim)]
    lengths, factors = _target(ctx, x, axes, scales, sizes)
    transform = "asymmetric" if ctx.opset < 11 else ctx.attr("coordinate_transformation_mode")
    rounding = "floor" if ctx.opset < 11 else ctx.attr("nearest_mode")
    regions = ctx.concrete(roi).reshape(2, -1) if transform == "tf_crop_and_resize" else None
    kind = ctx.attr("mode")
    y = x
    for i, (axis, length, factor) in enumerate(zip(axes, lengths, factors)):
        region = None if regions is None else (float(regions[0, i]), float(regions[1, i]))
        y = _interpolate(ctx, y, axis, length, factor, kind, transform, rounding, region)
    return _narrowed(ctx, y, x.dtype)


def _narrowed(ctx: Context, y: Any, dtype: Any) -> Any:
    """The operand's type again. Whole numbers are cut off, rounded with antialias, as in ONNX Runtime."""
    if y.dtype == dtype or not jnp.issubdtype(dtype, jnp.integer):
        return y.astype(dtype)
    limits = jnp.iinfo(dtype)
    whole = jnp.round(y) if ctx.attr("antialias", 0) else jnp.trunc(y)
    return jnp.clip(whole, limits.min, limits.max).astype(dtype)


def _target(ctx: Context, x: Any, axes: list[int], scales: Any, sizes: Any) -> tuple[list[int], list[float]]:
    if sizes is not None and sizes.size:
        lengths = ctx.ints(sizes)
        factors = [n / x.shape[a] for n, a in zip(lengths, axes)]
        policy = ctx.attr("keep_aspect_ratio_policy", "stretch") or "stretch"
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            return [math.floor(x.shape[a] * factor + 0.5) for a in axes], [factor] * len(axes)
        return lengths, factors
    values = [float(s) for s in ctx.concrete(scales).reshape(-1)]
    return [math.floor(x.shape[a] * s) for a, s in zip(axes, values)], values


def _interpolate(
    ctx: Context,
    x: Any,
    axis: int,
    length: int,
    factor: float,
    kind: str,
    transform: str,
    rounding: str,
    region: tuple[float, float] | None = None,
) -> Any:
    """Resize one axis to `length`. All coordinates are known at compile time: a gather and a weighted sum remain."""
    size = x.shape[axis]
    if length == size and factor == 1.0 and region in (None, (0.0, 1.0)):
        return x
    source = _coordinates(length, size, factor, transform, region)
    if kind == "nearest":
        index = np.clip(_round(source, rounding), 0, size - 1).astype(np.int64)
        y = jnp.take(x, index, axis=axis)
    else:
        y = _weighted(ctx, x, axis, source, factor, kind)
    if region is not None:
        outside = (source < 0) | (source > size - 1)
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        fill = np.asarray(ctx.attr("extrapolation_value", 0.0), x.dtype)
        y = jnp.where(outside.reshape(shape), fill, y)
    return y


def _coordinates(
    length: int, size: int, factor: float, transform: str, region: tuple[float, float] | None
) -> np.ndarray:
    out = np.arange(length, dtype=np.float64)
    match transform:
        case "half_pixel":
            return (out + 0.5) / factor - 0.5
        case "asymmetric":
            return out / factor
        case "align_corners":
            return out * (size - 1) / (length - 1) if length > 1 else np.zeros(length)
        case "pytorch_half_pixel":
            return (out + 0.5) / factor - 0.5 if length > 1 else np.zeros(length)
        case "tf_half_pixel_for_nn":
            return (out + 0.5) / factor
        case "half_pixel_symmetric":
            adjustment = length / (factor * size)
            centre = size / 2
            return centre * (1 - adjustment) + (out + 0.5) / factor - 0.5
        case "tf_crop_and_resize":
            start, end = region or (0.0, 1.0)
            if length > 1:
                return start * (size - 1) + out * (end - start) * (size - 1) / (length - 1)
            return np.full(length, 0.5 * (start + end) * (size - 1))
    raise ValueError(f"unknown coordinate_transformation_mode {transform!r}")


def _round(source: np.ndarray, rounding: str) -> np.ndarray:
    # Coordinates such as 1.4999999 come from the division; snap them, as single precision does elsewhere.
    source = np.round(source, 6)
    match rounding:
        case "round_prefer_floor":
            return np.ceil(source - 0.5)
        case "round_prefer_ceil":
            return np.floor(source + 0.5)
        case "floor":
            return np.floor(source)
        case "ceil":
            return np.ceil(source)
    raise ValueError(f"unknown nearest_mode {rounding!r}")


def _weighted(ctx: Context, x: Any, axis: int, source: np.ndarray, factor: float, kind: str) -> Any:
    """Sum over the taps of gather(x, index) · weight; with antialias the kernel is stretched by 1 / factor.

    The result has at least 32 bits: only the last axis' is rounded to the operand's type.
    """
    size = x.shape[axis]
    stretch = max(1.0, 1 / factor) if ctx.attr("antialias", 0) else 1.0
    reach = (1 if kind == "linear" else 2) * stretch
    first = np.floor(source - reach).astype(np.int64) + 1
    taps = int(np.ceil(2 * reach)) + (1 if stretch > 1 else 0)
    index = first[:, None] + np.arange(taps)
    distance = np.abs(index - source[:, None]) / stretch
    weights = np.maximum(0, 1 - distance) if kind == "linear" else cubic(np, distance, ctx.attr("cubic_coeff_a", -0.75))
    inside = (index >= 0) & (index < size)
    if ctx.attr("exclude_outside", 0):
        weights = np.where(inside, weights, 0)
    if stretch > 1 or ctx.attr("exclude_outside", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    index = np.clip(index, 0, size - 1)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    total: Any = 0
    for tap in range(taps):
        weight = weights[:, tap].astype(wide).reshape(shape)
        total = total + jnp.take(x, index[:, tap], axis=axis).astype(wide) * weight
    return total


def cubic(xp: ModuleType, distance: Any, a: float) -> Any:
    """The cubic convolution kernel (Keys 1981) at `distance` ≥ 0; `a` is its slope at 1."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return xp.where(distance <= 1, near, xp.where(distance < 2, far, 0.0))


register("Upsample")(upsample)
register("Resize", since=10)(resize)
