"""Convolutions, computed in channels-last order. Weights are output channels, input channels per group, spatial."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.layouts import ChannelsLast, accepting, adapts, channels_last, plain
from pfvm.runtime.xla.ops.conv_products import product_for
from pfvm.runtime.xla.ops.windows import Window, check_fits, read_window
from pfvm.runtime.xla.registry import register

# XLA's CPU convolution with groups is slower than the same sum written out over the kernel's positions: 5-42 times for
# depthwise weights, 1.1-3.5 times for ResNeXt's (measured with jaxlib 0.10.2 on 3x3 and 5x5 kernels, strides 1 and 2).
_MAX_SHIFTED_TAPS = 128


def conv(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> Any:
    """The Conv rule with a plain result, for rules that build on it."""
    return plain(_conv(ctx, node, x, w, bias))


def _conv(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> ChannelsLast:
    prepared = any(w is operand for operand in ctx.operands) and ctx.known(w) is not None
    folds = {user.op_type for user, _ in ctx.node.outputs[0].uses()} == {"BatchNormalization"}
    y = _convolve(ctx, x, w, prepared=prepared and not folds)  # most likely nobody will read it: as short as can be
    shifted = _is_shifted(ctx, w)

    def rescaled(factor: Any, shift: Any) -> Any:
        weights = w * factor.reshape((-1,) + (1,) * (w.ndim - 1))
        return _convolve(ctx, x, weights, prepared=prepared) + (shift if bias is None else bias * factor + shift)

    return ChannelsLast(y if bias is None else y + bias, rescaled, long=shifted)


def _convolve(ctx: Context, x: Any, w: Any, accumulate: Any = None, prepared: bool = False) -> Any:
    """The channels-last data of the convolution that the attributes describe, without bias.

    `accumulate` is the result type where it differs, `prepared`: what follows from `w` alone is computed at load time.
    Raises UnsupportedOpError where the kernel does not fit.
    """
    group = ctx.attr("group") or 1
    window = read_window(ctx, x.shape[2:], w.shape[2:])
    check_fits(ctx, x.shape[2:], window)
    data, kernel = channels_last(x), _spatial_first(w)
    if accumulate is None and _is_shifted(ctx, w):
        return _grouped(data, kernel, window, group)
    if accumulate is None and group == 1:
        product = product_for(data.shape, data.dtype, kernel.shape, window, prepared)
        if product is not None:
            return product(data, kernel)

    def convolution(data: Any, kernel: Any, result: Any = accumulate) -> Any:
        return lax.conv_general_dilated(
            data,
            kernel,
            window.strides,
            window.pads,
            rhs_dilation=window.dilations,
            feature_group_count=group,
            preferred_element_type=result,
            dimension_numbers=_dimension_numbers(data.ndim),
        )

    def in_float64(data: Any, kernel: Any) -> Any:
        return convolution(data.astype(jnp.float64), kernel.astype(jnp.float64), None).astype(accumulate or data.dtype)

    if jnp.issubdtype(data.dtype, jnp.integer):
        # cuDNN has none of 32-bit integers; their sums are exact in float64.
        return lax.platform_dependent(data, kernel, cuda=in_float64, default=convolution)
    return convolution(data, kernel)


def _is_shifted(ctx: Context, w: Any) -> bool:
    """Is the convolution written out over the kernel's positions?"""
    return (ctx.attr("group") or 1) > 1 and math.prod(w.shape[2:]) <= _MAX_SHIFTED_TAPS


def _spatial_first(w: Any) -> Any:
    """O, I, spatial → spatial, I, O."""
    return jnp.transpose(w, (*range(2, w.ndim), 1, 0))


def _dimension_numbers(rank: int) -> tuple[str, str, str]:
    spatial = "DHWXYZ"[-(rank - 2) :] if rank <= 5 else "abcdef"[: rank - 2]
    return (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")


@functools.partial(jax.jit, static_argnums=(2, 3))  # traced once for each shape
def _grouped(x: Any, w: Any, window: Window, group: int) -> Any:
    """One product and sum for each kernel position: elementwise for depthwise weights, else a matmul per group."""
    result = x.dtype
    if result.itemsize < 4:  # a long sum needs more bits than half precision has
        x, w = x.astype(jnp.float32), w.astype(jnp.float32)
    padded = lax.pad(x, np.zeros((), x.dtype), ((0, 0, 0), *((a, b, 0) for a, b in window.pads), (0, 0, 0)))
    if w.shape[-2] == 1:
        padded = jnp.repeat(padded, w.shape[-1] // x.shape[-1], axis=-1)  # output channels of each input channel
        terms = (window.shifted(padded, tap, first=1) * w[(*tap, 0)] for tap in window.taps())
        return functools.reduce(operator.add, terms).astype(result)
    n, *_, c = padded.shape
    split = jnp.moveaxis(padded.reshape(*padded.shape[:-1], group, c // group), -2, 1)  # N, group, spatial, C / group
    weights = w.reshape(*w.shape[:-1], group, -1)
    products = (
        jnp.einsum("ngpc,cgo->ngpo", view.reshape(n, group, -1, c // group), weights[tap])
        for tap in window.taps()
        for view in (window.shifted(split, tap),)
    )
    total = jnp.moveaxis(functools.reduce(operator.add, products), 1, 2)
    return total.reshape(n, *window.output_size(x.shape[1:-1]), w.shape[-1]).astype(result)


def conv_transpose(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> ChannelsLast:
    """As a convolution of the dilated operand with the flipped kernel. `w` is C, M / group, spatial."""
    rank = x.ndim - 2
    group = ctx.attr("group") or 1
    kernel = w.shape[2:]
    strides = tuple(ctx.attr("strides", None) or (1,) * rank)
    dilations = tuple(ctx.attr("dilations", None) or (1,) * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    extra = list(ctx.attr("output_padding", None) or [0] * rank)
    pads = _transposed_pads(ctx, x.shape[2:], strides, spans, extra)
    flipped = jnp.flip(w, tuple(range(2, w.ndim)))
    per_group = flipped.reshape(group, w.shape[0] // group, *w.shape[1:])
    weights = jnp.swapaxes(per_group, 1, 2).reshape(group * w.shape[1], w.shape[0] // group, *kernel)
    y = lax.conv_general_dilated(
        channels_last(x),
        _spatial_first(weights),
        (1,) * rank,
        [(k - 1 - a, k - 1 - b + e) for k, (a, b), e in zip(spans, pads, extra)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=group,
        dimension_numbers=_dimension_numbers(x.ndim),
    )
    return ChannelsLast(y if bias is None else y + bias)


def _transposed_pads(
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


def conv_integer(ctx: Context, node: ir.Node, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """Pads hold the zero point, so that they add nothing."""
    return integer_convolution(ctx, x, w, x_zero, w_zero)


def integer_convolution(ctx: Context, x: Any, w: Any, x_zero: Any, w_zero: Any) -> Any:
    x = x.astype(jnp.int32) - (0 if x_zero is None else x_zero.astype(jnp.int32).reshape(()))
    if w_zero is None:
        shift: Any = 0
    else:
        shift = (
            w_zero.astype(jnp.int32).reshape((-1,) + (1,) * (w.ndim - 1))
            if w_zero.size > 1
            else w_zero.astype(jnp.int32).reshape(())
        )
    return plain(ChannelsLast(_convolve(ctx, x, w.astype(jnp.int32) - shift, accumulate=jnp.int32)))


register("Conv")(_conv)
register("ConvTranspose")(conv_transpose)
register("ConvInteger")(conv_integer)
adapts("Conv", "ConvTranspose")(accepting)
