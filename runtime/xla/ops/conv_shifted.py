"""Convolutions with groups as a sum over the kernel's positions. Operands are N, spatial, C and spatial, I, O.

A depthwise sum of 49 terms would be 290 equations, each traced and lowered for itself: longer than the rest of the net
takes. It is one primitive here, whose lowering writes the StableHLO.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir
from pfvm.runtime.xla.ops.windows import Window


def shifted_convolution(x: Any, w: Any, window: Window, group: int) -> Any:
    """One product and sum for each kernel position: elementwise for depthwise weights, else a matmul per group."""
    result = x.dtype
    if result.itemsize < 4:  # a long sum needs more bits than half precision has
        x, w = x.astype(jnp.float32), w.astype(jnp.float32)
    pads = ((0, 0, 0), *((a, b, 0) for a, b in window.pads), (0, 0, 0))
    padded = lax.pad(x, np.zeros((), x.dtype), pads) if any(map(any, window.pads)) else x
    if w.shape[-2] > 1:
        total = _grouped(padded, w, window.unpadded(), group)
    else:
        if w.shape[-1] > x.shape[-1]:  # output channels of each input channel
            padded = jnp.repeat(padded, w.shape[-1] // x.shape[-1], axis=-1)
        is_fixed = all(isinstance(dim, int) for dim in padded.shape)  # the lowering below writes its types
        total = (_depthwise_p.bind if is_fixed else _depthwise)(padded, w, window=window.unpadded())
    return total if total.dtype == result else total.astype(result)


@functools.partial(jax.jit, static_argnums=(2, 3))  # traced once for each shape
def _grouped(padded: Any, w: Any, window: Window, group: int) -> Any:
    n, *size, c = padded.shape
    split = jnp.moveaxis(padded.reshape(n, *size, group, c // group), -2, 1)  # N, group, spatial, C / group
    weights = w.reshape(*w.shape[:-1], group, -1)
    products = (
        jnp.einsum("ngpc,cgo->ngpo", view.reshape(n, group, -1, c // group), weights[tap])
        for tap in window.taps()
        for view in (window.shifted(split, tap),)
    )
    total = jnp.moveaxis(functools.reduce(operator.add, products), 1, 2)
    return total.reshape(n, *window.output_size(size), w.shape[-1])


_depthwise_p = jex.Primitive("depthwise_convolution")


def _depthwise(padded: Any, w: Any, *, window: Window) -> Any:
    """In jax's own primitives, for whoever transforms the program."""
    return functools.reduce(
        operator.add, (window.shifted(padded, tap, first=1) * w[(*tap, 0)] for tap in window.taps())
    )


def _depthwise_aval(padded: Any, w: Any, *, window: Window) -> ShapedArray:
    return ShapedArray((padded.shape[0], *window.output_size(padded.shape[1:-1]), padded.shape[-1]), padded.dtype)


def _depthwise_lowering(ctx: Any, padded: Any, w: Any, *, window: Window) -> Sequence[Any]:
    (result,) = ctx.avals_out
    channels = w.type.shape[-1]
    element = padded.type.element_type
    full = ir.RankedTensorType.get(result.shape, element)
    rows = stablehlo.reshape(ir.RankedTensorType.get((math.prod(window.kernel), channels), element), w)
    axes = _integers((0, len(result.shape) - 1))
    total = None
    for index, tap in enumerate(window.taps()):
        begin, end, steps = window.bounds(padded.type.shape, tap, first=1)
        view = stablehlo.slice(padded, _integers(begin), _integers(end), _integers(steps))
        row = stablehlo.slice(rows, _integers((index, 0)), _integers((index + 1, channels)), _integers((1, 1)))
        term = stablehlo.multiply(view, stablehlo.broadcast_in_dim(full, row, axes))
        total = term if total is None else stablehlo.add(total, term)
    return [total]


def _integers(values: Sequence[int]) -> Any:
    return ir.DenseI64ArrayAttr.get(values)


def _depthwise_jvp(primals: Any, tangents: Any, *, window: Window) -> Any:
    dense = [ad.instantiate_zeros(tangent) for tangent in tangents]
    return jax.jvp(functools.partial(_depthwise, window=window), tuple(primals), tuple(dense))


def _depthwise_batched(operands: Any, axes: Any, *, window: Window) -> Any:
    return jax.vmap(functools.partial(_depthwise, window=window), axes)(*operands), 0


_depthwise_p.def_impl(jax.jit(_depthwise, static_argnames="window"))
_depthwise_p.def_abstract_eval(_depthwise_aval)
mlir.register_lowering(_depthwise_p, _depthwise_lowering)
ad.primitive_jvps[_depthwise_p] = _depthwise_jvp
batching.primitive_batchers[_depthwise_p] = _depthwise_batched
