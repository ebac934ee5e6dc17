"""Convolutions. Layout is N, C, spatial; weights are output channels, input channels per group, spatial."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.windows import Window, read_window
from pfvm.runtime.xla.registry import register

# XLA's CPU convolution with groups is slower than the same sum written out over the kernel's positions: 5-42 times for
# depthwise weights, 1.1-3.5 times for ResNeXt's (measured with jaxlib 0.10.2 on 3x3 and 5x5 kernels, strides 1 and 2).
_MAX_SHIFTED_TAPS = 128


def conv(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> Any:
    y = convolve(ctx, x, w)
    return y if bias is None else y + bias.reshape((1, -1) + (1,) * (y.ndim - 2))


def convolve(ctx: Context, x: Any, w: Any, accumulate: Any = None) -> Any:
    """The convolution of the node's attributes without bias; `accumulate` is the result type where it differs."""
    group = ctx.attr("group") or 1
    window = read_window(ctx, x.shape[2:], w.shape[2:])
    if accumulate is None and group > 1 and math.prod(window.kernel) <= _MAX_SHIFTED_TAPS:
        return _grouped(x, w, window, group)
    return lax.conv_general_dilated(
        x,
        w,
        window.strides,
        window.pads,
        rhs_dilation=window.dilations,
        feature_group_count=group,
        preferred_element_type=accumulate,
        dimension_numbers=_dimension_numbers(x.ndim),
    )


def _dimension_numbers(rank: int) -> tuple[str, str, str]:
    spatial = "DHWXYZ"[-(rank - 2) :] if rank <= 5 else "abcdef"[: rank - 2]
    return ("NC" + spatial, "OI" + spatial, "NC" + spatial)


def _grouped(x: Any, w: Any, window: Window, group: int) -> Any:
    """One product and sum for each kernel position: elementwise for depthwise weights, else a matmul per group."""
    result = x.dtype
    if result.itemsize < 4:  # a long sum needs more bits than half precision has
        x, w = x.astype(jnp.float32), w.astype(jnp.float32)
    one_each = w.shape[1] == 1
    if one_each and w.shape[0] > x.shape[1]:  # several output channels for each input channel
        x = jnp.repeat(x, w.shape[0] // x.shape[1], axis=1)
    padded = _pad(x, window.pads)
    term = _depthwise_term if one_each else functools.partial(_group_term, group=group)
    terms = (term(window.shifted(padded, tap), w, tap) for tap in window.taps())
    return functools.reduce(operator.add, terms).astype(result)


def _depthwise_term(view: Any, w: Any, tap: tuple[int, ...]) -> Any:
    return view * w[(slice(None), 0, *tap)].reshape((1, -1) + (1,) * (view.ndim - 2))


def _group_term(view: Any, w: Any, tap: tuple[int, ...], group: int) -> Any:
    n, _, *spatial = view.shape
    weights = w[(slice(None), slice(None), *tap)].reshape(group, -1, w.shape[1])
    product = jnp.einsum("ngcp,goc->ngop", view.reshape(n, group, w.shape[1], math.prod(spatial)), weights)
    return product.reshape(n, w.shape[0], *spatial)


def _pad(x: Any, pads: tuple[tuple[int, int], ...]) -> Any:
    return lax.pad(x, np.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *((a, b, 0) for a, b in pads)))


def conv_transpose(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> Any:
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
        x,
        weights,
        (1,) * rank,
        [(k - 1 - a, k - 1 - b + e) for k, (a, b), e in zip(spans, pads, extra)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=group,
        dimension_numbers=_dimension_numbers(x.ndim),
    )
    return y if bias is None else y + bias.reshape((1, -1) + (1,) * rank)


def _transposed_pads(
    ctx: Context, size: tuple[int, ...], strides: tuple[int, ...], spans: list[int], extra: list[int]
) -> list[tuple[int, int]]:
    rank = len(size)
    auto = ctx.attr("auto_pad", "NOTSET")
    wanted = ctx.attr("output_shape", None)
    if wanted:
        wanted = wanted[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(size, strides)]
    else:
        flat = ctx.attr("pads", None) or [0] * (2 * rank)
        return list(zip(flat[:rank], flat[rank:]))
    pads = []
    for n, s, k, e, out in zip(size, strides, spans, extra, wanted):
        total = s * (n - 1) + e + k - out
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
    return convolve(ctx, x, w.astype(jnp.int32) - shift, accumulate=jnp.int32)


register("Conv")(conv)
register("ConvTranspose")(conv_transpose)
register("ConvInteger")(conv_integer)
