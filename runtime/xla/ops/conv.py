"""Convolutions, computed in channels-last order. Weights are output channels, input channels per group, spatial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context, MisfitError
from pfvm.runtime.xla.layouts import (
    ChannelsLast,
    Postponed,
    accepting,
    adapts,
    channels_last,
    over_channels,
    plain,
    plus_channels,
)
from pfvm.runtime.xla.ops.conv_products import depthwise_gradient, product_for
from pfvm.runtime.xla.ops.conv_shifted import shifted_convolution
from pfvm.runtime.xla.ops.windows import Window, check_fits, read_window
from pfvm.runtime.xla.platforms import traced_platform
from pfvm.runtime.xla.registry import register
from pfvm.runtime.xla.straight import traced_once

# XLA's CPU convolution with groups is slower than the same sum written out over the kernel's positions: 5-42 times for
# depthwise weights, 1.1-3.5 times for ResNeXt's (measured with jaxlib 0.10.2 on 3x3 and 5x5 kernels, strides 1 and 2).
_MAX_SHIFTED_TAPS = 128


def conv(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> Any:
    """The Conv rule with a plain result, for rules that build on it."""
    return plain(_conv(ctx, node, x, w, bias))


def _conv(ctx: Context, node: ir.Node, x: Any, w: Any, bias: Any = None) -> ChannelsLast:
    def prepared() -> bool:  # reads the weights: asked only where it matters
        return any(w is operand for operand in ctx.operands) and ctx.known(w) is not None

    window, group = _geometry(ctx, x, w)
    data, long, swapped = channels_last(x), _is_shifted(w.shape, group), _is_swapped(node)

    def convolved(kernel: Any, shift: Any) -> Any:
        if swapped:
            y = _cut(data, kernel, window, group, _kept_results(ctx, node, window.output_size(x.shape[2:])))
        else:
            y = convolve(data, kernel, window, group, prepared=prepared)
        return y if shift is None else plus_channels(y, shift)

    def normalized(statistics: Sequence[Any], epsilon: float) -> Any:
        return convolved(*_normalized_weights(w, bias, *statistics, epsilon=epsilon))

    readers = {(user.op_type, user.graph) for user, _ in node.outputs[0].uses()}
    if x.dtype == w.dtype and readers == {("BatchNormalization", node.graph)}:
        return Postponed(lambda: convolved(spatial_first(w), bias), x.ndim, x.dtype, normalized, long)
    return ChannelsLast(convolved(spatial_first(w), bias), long=long)


@traced_once  # one step, which runs when the model is loaded
def _normalized_weights(
    w: Any, bias: Any, scale: Any, offset: Any, mean: Any, var: Any, *, epsilon: float
) -> list[Any]:
    """Kernel and bias, as it is added, of a convolution with the normalization of its result inside."""
    factor = scale / jnp.sqrt(var + np.asarray(epsilon, var.dtype))
    shift = offset - mean * factor
    kernel = spatial_first(w * factor.reshape((-1,) + (1,) * (w.ndim - 1)))
    return [kernel, over_channels(shift if bias is None else bias * factor + shift, w.ndim)]


def _geometry(ctx: Context, x: Any, w: Any) -> tuple[Window, int]:
    """The window and the number of groups. Raises UnsupportedOpError where the kernel does not fit."""
    window = read_window(ctx, x.shape[2:], w.shape[2:])
    check_fits(ctx, x.shape[2:], window)
    group = ctx.attr("group") or 1
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        given = f"{x.shape[1]} channels, weights {list(w.shape)} and group {group}"
        raise MisfitError(f"{ctx.where}: {given} do not go together")
    return window, group


def convolve(
    data: Any,
    kernel: Any,
    window: Window,
    group: int,
    accumulate: Any = None,
    prepared: Callable[[], bool] = bool,
    swapped: bool = False,
) -> Any:
    """The convolution of N, spatial, C with spatial, I, O.

    `accumulate` is the result type where it differs, `prepared`: what follows from the kernel alone is computed at load
    time, `swapped`: the batch stands in the place of the channels.
    """
    if accumulate is None and group > 1 and swapped:
        gradient = depthwise_gradient(data, kernel, window, group)
        if gradient is not None:
            return gradient
    if accumulate is None and _is_shifted((kernel.shape[-1], kernel.shape[-2], *kernel.shape[:-2]), group):
        return shifted_convolution(data, kernel, window, group)
    if accumulate is None and group == 1:
        product = product_for(data.shape, data.dtype, kernel.shape, window, prepared, swapped)
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
            dimension_numbers=dimension_numbers(data.ndim),
        )

    def in_float64(data: Any, kernel: Any) -> Any:
        return convolution(data.astype(jnp.float64), kernel.astype(jnp.float64), None).astype(accumulate or data.dtype)

    if jnp.issubdtype(data.dtype, jnp.integer):
        # cuDNN has none of 32-bit integers; their sums are exact in float64.
        return lax.platform_dependent(data, kernel, cuda=in_float64, default=convolution)
    return convolution(data, kernel)


def _is_shifted(weights: tuple[int, ...], group: int) -> bool:
    """Is the convolution written out over the kernel's positions? A TPU's own takes 2 to 5 times fewer cycles."""
    return traced_platform() != "tpu" and group > 1 and math.prod(weights[2:]) <= _MAX_SHIFTED_TAPS


def _cut(data: Any, kernel: Any, window: Window, group: int, kept: Sequence[int]) -> Any:
    """The convolution, of which only the first `kept` results along each axis are read: the others are zeros."""
    missing = [n - k for n, k in zip(window.output_size(data.shape[1:-1]), kept)]
    pads = tuple((a, b - m * s) for (a, b), m, s in zip(window.pads, missing, window.strides))
    y = convolve(data, kernel, dataclasses.replace(window, pads=pads), group, swapped=True)
    if not any(missing):
        return y
    return lax.pad(y, np.zeros((), y.dtype), ((0, 0, 0), *((0, m, 0) for m in missing), (0, 0, 0)))


def _kept_results(ctx: Context, node: ir.Node, size: Sequence[int]) -> list[int]:
    """How many of a convolution's results are left by the Slices behind it, which cut what no window reached."""
    value, kept = node.outputs[0], list(size)
    while len(value.uses()) == 1 and not value.is_graph_output():
        ((reader, index),) = value.uses()
        if reader.op_type != "Slice" or reader.domain not in ("", "ai.onnx") or reader.graph is not node.graph or index:
            break
        parts = [None if v is None else ctx.host_value(v, ctx.scope.env.get(v)) for v in reader.inputs[1:]]
        if len(parts) < 3 or any(part is None for part in parts):
            break
        starts, ends, axes, *steps = (np.asarray(part).reshape(-1) for part in parts)
        if starts.any() or (ends <= 0).any() or (axes < 2).any() or (np.asarray(steps) != 1).any():
            break
        for axis, end in zip(axes, ends):
            kept[axis - 2] = min(kept[axis - 2], int(end))
        value = reader.outputs[0]
    return kept


def _is_swapped(node: ir.Node) -> bool:
    """Does the batch stand in the place of the channels, as in the gradient of a kernel?"""
    return all(_turn(v) == [1, 0] for v in node.inputs[:2]) or (
        node.attributes.get_int("group", 1) > 1
        and [_turn(_reshaped(v)) for v in node.inputs[:2]] == [[2, 1, 0], [1, 2, 0]]
    )


def _turn(value: ir.Value | None) -> list[int] | None:
    """The order in which a Transpose puts the first axes; the others stay."""
    turn = None if value is None else value.producer()
    if turn is None or turn.op_type != "Transpose" or turn.domain not in ("", "ai.onnx"):
        return None
    order = list(turn.attributes.get_ints("perm", ()) or ())
    while order and order[-1] == len(order) - 1:
        order.pop()
    return order


def _reshaped(value: ir.Value | None) -> ir.Value | None:
    """What a Reshape reads."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and node.op_type == "Reshape" else None


def spatial_first(w: Any) -> Any:
    """O, I, spatial → spatial, I, O."""
    return lax.transpose(w, (*range(2, w.ndim), 1, 0))


def dimension_numbers(rank: int) -> tuple[str, str, str]:
    spatial = "DHWXYZ"[-(rank - 2) :] if rank <= 5 else "abcdef"[: rank - 2]
    return (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")


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
    window, group = _geometry(ctx, x, w)
    kernel = spatial_first(w.astype(jnp.int32) - shift)
    return plain(ChannelsLast(convolve(channels_last(x), kernel, window, group, accumulate=jnp.int32)))


register("Conv")(_conv)
register("ConvInteger")(conv_integer)
adapts("Conv")(accepting)
