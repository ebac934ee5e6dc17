"""Transposed convolutions, which are also the gradients of convolutions to their operands.

XLA's own form, a convolution of the operand with zeros between its elements, multiplies mostly those zeros on a CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.layouts import ChannelsLast, accepting, adapts, channels_last, plus_channels
from pfvm.runtime.xla.ops.conv import convolve, dimension_numbers, spatial_first
from pfvm.runtime.xla.ops.windows import Window
from pfvm.runtime.xla.platforms import traced_platform
from pfvm.runtime.xla.registry import register

# Contributions are added up where there are at most so many for each element of the operand, of so many bytes in all.
_MOST_TAPS = 64
_CONTRIBUTION_BYTES = 16 << 20
_MOST_PHASES = 16


@dataclasses.dataclass(frozen=True)
class _Transposed:
    """y[p·stride + k·dilation - pad] += x[p]·w[k]; `output` is the size of y."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    output: tuple[int, ...]


def conv_transpose(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> ChannelsLast:
    """`w` is C, M / group, spatial."""
    group = ctx.attr("group") or 1
    y = _transposed(channels_last(x), w, _read(ctx, x.shape[2:], w.shape[2:]), group)
    return ChannelsLast(y if bias is None else plus_channels(y, bias))


def _transposed(data: Any, w: Any, geometry: _Transposed, group: int) -> Any:
    if traced_platform() != "cpu" or data.dtype not in (np.float32, np.float64) or data.size == 0:
        return _dilated(data, _kernel(w, group), geometry, group)
    wide = any(k > n for k, n in zip(geometry.kernel, geometry.size))
    taps, phases = math.prod(geometry.kernel), math.prod(geometry.strides)
    contributions = data.size // data.shape[-1] * w.size // w.shape[0] * data.dtype.itemsize
    small = data.size < w.shape[0] ** 2  # fewer elements than channels
    if group == 1 and (wide or small or phases > 1) and taps <= _MOST_TAPS and contributions <= _CONTRIBUTION_BYTES:
        return _added_up(data, w, geometry)
    if phases <= _MOST_PHASES:
        return _in_phases(data, _kernel(w, group), geometry, group)
    return _dilated(data, _kernel(w, group), geometry, group)


def _kernel(w: Any, group: int) -> Any:
    """The flipped kernel of a convolution of the dilated operand: spatial, C / group, M."""
    flipped = jnp.flip(w, tuple(range(2, w.ndim)))
    per_group = flipped.reshape(group, w.shape[0] // group, *w.shape[1:])
    return spatial_first(jnp.swapaxes(per_group, 1, 2).reshape(group * w.shape[1], w.shape[0] // group, *w.shape[2:]))


def _dilated(data: Any, kernel: Any, geometry: _Transposed, group: int) -> Any:
    spans = [(k - 1) * d for k, d in zip(geometry.kernel, geometry.dilations)]
    lengths = [(n - 1) * s + 1 for n, s in zip(geometry.size, geometry.strides)]
    pads = [
        (span - a, out + a - length)
        for span, (a, _), out, length in zip(spans, geometry.pads, geometry.output, lengths)
    ]
    return lax.conv_general_dilated(
        data,
        kernel,
        (1,) * len(spans),
        pads,
        lhs_dilation=geometry.strides,
        rhs_dilation=geometry.dilations,
        feature_group_count=group,
        dimension_numbers=dimension_numbers(data.ndim),
    )


def _added_up(data: Any, w: Any, geometry: _Transposed) -> Any:
    """One product that gives what each element of the operand adds to the result for each position of the kernel."""
    rank, results = len(geometry.size), w.shape[1]
    rows = data.reshape(-1, w.shape[0])
    if rows.shape[0] < w.shape[0]:  # fewer contributions than weights: these stay in the model's order
        parts = jnp.matmul(rows, w.reshape(w.shape[0], -1)).reshape(*data.shape[:-1], results, -1)
        parts = jnp.moveaxis(parts, -1, -2)
    else:
        columns = jnp.moveaxis(w, 1, -1).reshape(w.shape[0], -1)
        parts = jnp.matmul(rows, columns).reshape(*data.shape[:-1], -1, results)
    placed = []
    for index, tap in enumerate(itertools.product(*map(range, geometry.kernel))):
        edges = []
        for axis in range(rank):
            stride, length = geometry.strides[axis], geometry.size[axis]
            before = tap[axis] * geometry.dilations[axis] - geometry.pads[axis][0]
            edges.append((before, geometry.output[axis] - before - (length - 1) * stride - 1, stride - 1))
        placed.append(lax.pad(parts[..., index, :], np.zeros((), w.dtype), ((0, 0, 0), *edges, (0, 0, 0))))
    return functools.reduce(operator.add, placed)


def _in_phases(data: Any, kernel: Any, geometry: _Transposed, group: int) -> Any:
    """Results whose positions have the same remainder by the stride are a convolution with a part of the kernel."""
    counts = [-(-out // s) for out, s in zip(geometry.output, geometry.strides)]
    phases = [
        _phase(data, kernel, geometry, group, phase, counts)
        for phase in itertools.product(*map(range, geometry.strides))
    ]
    if len(phases) == 1:
        return phases[0]
    rank = len(counts)
    stacked = jnp.stack(phases).reshape(*geometry.strides, data.shape[0], *counts, kernel.shape[-1])
    order = (rank, *(axis for i in range(rank) for axis in (rank + 1 + i, i)), 2 * rank + 1)
    whole = jnp.transpose(stacked, order).reshape(
        data.shape[0], *(n * s for n, s in zip(counts, geometry.strides)), kernel.shape[-1]
    )
    return whole[(slice(None), *(slice(out) for out in geometry.output))]


def _phase(
    data: Any, kernel: Any, geometry: _Transposed, group: int, phase: Sequence[int], counts: Sequence[int]
) -> Any:
    """`counts` results that are a stride apart. The kernel's positions that reach them are apart by `step`."""
    taps, dilations, pads, parts = [], [], [], []
    for axis, (k, s, d) in enumerate(zip(geometry.kernel, geometry.strides, geometry.dilations)):
        first = phase[axis] + geometry.pads[axis][0]
        reached = [tap for tap in range(k) if (first - tap * d) % s == 0]
        if not reached:
            return jnp.zeros((data.shape[0], *counts, kernel.shape[-1]), data.dtype)
        step, dilation = s // math.gcd(s, d), d // math.gcd(s, d)
        before = (reached[-1] * d - first) // s
        taps.append(len(reached))
        dilations.append(dilation)
        pads.append((before, counts[axis] - geometry.size[axis] - before + (len(reached) - 1) * dilation))
        parts.append(slice(k - 1 - reached[-1], None, step))
    window = Window(tuple(taps), (1,) * len(taps), tuple(dilations), tuple(pads))
    return convolve(data, kernel[tuple(parts)], window, group)


def _read(ctx: Context, size: tuple[int, ...], kernel: tuple[int, ...]) -> _Transposed:
    rank = len(size)
    strides = tuple(ctx.attr("strides", None) or (1,) * rank)
    dilations = tuple(ctx.attr("dilations", None) or (1,) * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    extra = list(ctx.attr("output_padding", None) or [0] * rank)
    pads = tuple(_pads(ctx, size, strides, spans, extra))
    output = tuple((n - 1) * s + k - a - b + e for n, s, k, (a, b), e in zip(size, strides, spans, pads, extra))
    return _Transposed(size, tuple(kernel), strides, dilations, pads, output)


def _pads(
    ctx: Context, size: tuple[int, ...], strides: tuple[int, ...], spans: list[int], extra: list[int]
) -> list[tuple[int, int]]:
    rank = len(size)
    auto = ctx.attr("auto_pad", "NOTSET")
    asked = ctx.attr("output_shape", None)
    if asked:
        wanted = asked[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(size, strides)]
    else:
        flat = ctx.attr("pads", None) or [0] * (2 * rank)
        return list(zip(flat[:rank], flat[rank:]))
    pads = []
    for n, s, k, e, out in zip(size, strides, spans, extra, wanted):
        total = s * (n - 1) + e + k - out
        if total < 0:  # windows that leave gaps: an output_shape may ask for more at the end, "SAME" does not
            pads.append((0, total if asked else 0))
            continue
        small, large = total // 2, total - total // 2
        pads.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return pads


register("ConvTranspose")(conv_transpose)
adapts("ConvTranspose")(accepting)
