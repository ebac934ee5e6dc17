"""The gradient of a max pool, which models have as a scatter to the places that the pool's indices name.

XLA's CPU scatter adds one number after the other, and its indices are data, which a call has to check. Those of a pool
are right: here each position of the window compares, and what it passes on is added up where it came from. TPUs, whose
scatter is no faster, have an operation for it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.layouts import ChannelsLast, channels_last
from pfvm.runtime.xla.materialize import materialized
from pfvm.runtime.xla.ops.pool import lowest, pool_window
from pfvm.runtime.xla.ops.windows import Window
from pfvm.runtime.xla.platforms import traced_platform

_MOST_TAPS = 64


def max_pool_gradient(ctx: Context, node: ir.Node, data: Any, updates: Any) -> ChannelsLast | None:
    """N, C, places of the plane, where `node` is such a scatter of `updates`, which it adds to `data`; else None."""
    pool = _pool_of(ctx, node)
    source = None if pool is None else pool.inputs[0]
    x = None if source is None else ctx.scope.env.get(source)
    if pool is None or not isinstance(x, (ChannelsLast, jax.Array)) or traced_platform() == "cuda":
        return None
    window, pads = pool_window(dataclasses.replace(ctx, node=pool, operands=[x]), x.shape[2:])
    window = dataclasses.replace(window, pads=pads)
    lead, outputs = x.shape[:2], window.output_size(x.shape[2:])
    if data.shape != (*lead, math.prod(x.shape[2:])) or updates.shape != (*lead, math.prod(outputs)):
        return None
    if not 0 < math.prod(window.kernel) <= _MOST_TAPS or x.size == 0 or data.dtype != updates.dtype:
        return None
    dy = channels_last(updates).reshape(x.shape[0], *outputs, x.shape[1])
    selects = traced_platform() == "tpu" and set(window.dilations) == {1} and jnp.issubdtype(x.dtype, jnp.floating)
    dx = (_selected if selects else _gradient)(channels_last(x), dy, window)
    return ChannelsLast(channels_last(data) + dx.reshape(x.shape[0], -1, x.shape[1]))


def _pool_of(ctx: Context, node: ir.Node) -> ir.Node | None:
    """The max pool whose indices within a plane are those of `node`, which adds along a plane in one axis."""
    value = node.inputs[1]
    if ctx.attr("reduction", "none") != "add" or ctx.attr("axis") not in (2, -1) or value is None:
        return None
    modulus = _producer(value)
    while modulus is not None and modulus.op_type == "Reshape" and modulus.inputs[0] is not None:
        modulus = _producer(modulus.inputs[0])
    if modulus is None or modulus.op_type != "Mod" or modulus.inputs[0] is None or modulus.inputs[1] is None:
        return None
    pool, plane = _producer(modulus.inputs[0]), ctx.host_value(modulus.inputs[1], ctx.scope.env.get(modulus.inputs[1]))
    if pool is None or pool.op_type != "MaxPool" or pool.outputs[1] is not modulus.inputs[0]:
        return None
    whole = plane is not None and plane.size == 1 and int(plane.reshape(())) == ctx.operands[0].shape[-1]
    return pool if whole and not pool.attributes.get_int("storage_order", 0) else None


def _producer(value: ir.Value) -> ir.Node | None:
    node = value.producer()
    return node if node is not None and node.domain in ("", "ai.onnx") else None


@functools.partial(jax.jit, static_argnums=2)  # traced once for each shape
def _gradient(x: Any, dy: Any, window: Window) -> Any:
    """Of N, spatial, C."""
    chosen = materialized(_chosen(x, window))
    parts = []
    for number, tap in enumerate(window.taps()):
        part = jnp.where(chosen == np.int32(number), dy, np.zeros((), dy.dtype))
        edges = []
        for t, n, out, s, d, (a, _) in zip(
            tap, x.shape[1:-1], dy.shape[1:-1], window.strides, window.dilations, window.pads
        ):
            before = t * d - a
            edges.append((before, n - before - (out - 1) * s - 1, s - 1))
        parts.append(lax.pad(part, np.zeros((), dy.dtype), ((0, 0, 0), *edges, (0, 0, 0))))
    return functools.reduce(operator.add, parts)


def _selected(x: Any, dy: Any, window: Window) -> Any:
    """Of N, spatial, C: the gradient of XLA's own pool, select-and-scatter."""

    def pool(x: Any) -> Any:
        kernel, strides = (1, *window.kernel, 1), (1, *window.strides, 1)
        pads = ((0, 0), *window.pads, (0, 0))
        return lax.reduce_window(x, np.asarray(lowest(x.dtype), x.dtype), lax.max, kernel, strides, pads)

    return jax.vjp(pool, x)[1](dy)[0]


def _chosen(x: Any, window: Window) -> Any:
    """The number of the position in the window that each maximum comes from: the first of equal ones, never a pad."""
    low = np.asarray(lowest(x.dtype), x.dtype)
    padded = lax.pad(x, low, ((0, 0, 0), *((a, b, 0) for a, b in window.pads), (0, 0, 0)))
    views, size = window.unpadded(), x.shape[1:-1]
    best = jnp.full((x.shape[0], *window.output_size(size), x.shape[-1]), low)
    chosen = jnp.full(best.shape, np.int32(-1))
    for number, tap in enumerate(window.taps()):
        value = views.shifted(padded, tap, first=1)
        better = ((value > best) | (chosen < 0)) & _inside(window, size, tap)[..., None]
        best, chosen = jnp.where(better, value, best), jnp.where(better, np.int32(number), chosen)
    return chosen


def _inside(window: Window, size: Sequence[int], tap: Sequence[int]) -> np.ndarray:
    """Where position `tap` of the window lies in the operand, for each result."""
    inside = np.ones((), bool)
    geometry = zip(window.output_size(tuple(size)), size, tap, window.strides, window.dilations, window.pads)
    for out, n, t, s, d, (before, _) in geometry:
        places = np.arange(out) * s + t * d - before
        inside = inside[..., None] & (places >= 0) & (places < n)
    return inside
