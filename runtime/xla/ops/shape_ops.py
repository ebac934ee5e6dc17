"""Shapes: reading them, and rearranging a tensor without computing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.open_dims import sizes
from pfvm.runtime.xla.registry import register


def shape(ctx: Context, node: ir.Node, x: Any) -> Any:
    """`start` and `end` (opset 15) are clamped to the rank."""
    dims = sizes(x.shape)
    return dims[slice(ctx.attr("start", 0) or 0, ctx.attr("end", None))]


def size(ctx: Context, node: ir.Node, x: Any) -> Any:
    return sizes([math.prod(x.shape)]).reshape(())


def reshape(ctx: Context, node: ir.Node, x: Any, target: Any = None) -> Any:
    dims = ctx.attr("shape") if target is None else ctx.ints(target)
    if not ctx.attr("allowzero", 0):
        dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    return x.reshape(tuple(dims))


def flatten(ctx: Context, node: ir.Node, x: Any) -> Any:
    axis = ctx.attr("axis")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def squeeze(ctx: Context, node: ir.Node, x: Any, axes: Any = None) -> Any:
    dropped = ctx.int_param("axes", axes)
    return ctx.xp.squeeze(x, tuple(dropped) if dropped is not None else None)


def unsqueeze(ctx: Context, node: ir.Node, x: Any, axes: Any = None) -> Any:
    return ctx.xp.expand_dims(x, tuple(ctx.int_param("axes", axes) or ()))


def transpose(ctx: Context, node: ir.Node, x: Any) -> Any:
    return ctx.xp.transpose(x, ctx.attr("perm"))


def expand(ctx: Context, node: ir.Node, x: Any, target: Any) -> Any:
    dims = np.broadcast_shapes(x.shape, tuple(ctx.ints(target)))
    ctx.check_size(dims)
    return ctx.xp.broadcast_to(x, dims)


def identity(ctx: Context, node: ir.Node, x: Any) -> Any:
    return x


def depth_to_space(ctx: Context, node: ir.Node, x: Any) -> Any:
    n, c, *spatial = x.shape
    b = ctx.attr("blocksize")
    k = len(spatial)
    blocks = (b,) * k
    if ctx.attr("mode", "DCR") == "DCR":
        y = x.reshape(n, *blocks, c // b**k, *spatial)
        order = [0, 1 + k, *(a for i in range(k) for a in (2 + k + i, 1 + i))]
    else:
        y = x.reshape(n, c // b**k, *blocks, *spatial)
        order = [0, 1, *(a for i in range(k) for a in (2 + k + i, 2 + i))]
    return y.transpose(order).reshape(n, c // b**k, *(s * b for s in spatial))


def space_to_depth(ctx: Context, node: ir.Node, x: Any) -> Any:
    n, c, *spatial = x.shape
    b = ctx.attr("blocksize")
    k = len(spatial)
    y = x.reshape(n, c, *(d for s in spatial for d in (s // b, b)))
    offsets, blocks = [3 + 2 * i for i in range(k)], [2 + 2 * i for i in range(k)]
    order = [0, 1, *offsets, *blocks] if ctx.attr("mode", "DCR") == "CRD" else [0, *offsets, 1, *blocks]
    return y.transpose(order).reshape(n, c * b**k, *(s // b for s in spatial))


register("Shape", place="shape")(shape)
register("Size", place="shape")(size)
register("Reshape", place="host")(reshape)
register("Flatten", place="host")(flatten)
register("Squeeze", place="host")(squeeze)
register("Unsqueeze", place="host")(unsqueeze)
register("Transpose", place="host")(transpose)
register("Expand", place="host")(expand)
register("Identity", place="host")(identity)
register("DepthToSpace")(depth_to_space)
register("SpaceToDepth")(space_to_depth)
