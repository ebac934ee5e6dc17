"""Cutting, joining, padding and repeating tensors along axes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.passes.numpy_ops import sliced
from pfvm.runtime.xla.context import Context, MisfitError
from pfvm.runtime.xla.registry import register


def slice_(
    ctx: Context, node: ir.Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Any:
    begin = ctx.int_param("starts", starts) or []
    end = ctx.int_param("ends", ends) or []
    over = ctx.int_param("axes", axes)
    step = ctx.ints(steps) if steps is not None else [1] * len(begin)
    index = [slice(None)] * x.ndim
    for axis, b, e, s in zip(range(x.ndim) if over is None else over, begin, end, step):
        index[axis] = _python_slice(b, e, s, x.shape[axis])
    return x[tuple(index)]


def _python_slice(begin: int, end: int, step: int, size: int) -> slice:
    """The positions that ONNX says, as Python writes them: None ends a way back that takes in the first element."""
    positions = sliced(size, begin, end, step)
    return slice(positions.start, positions.stop if positions.stop >= 0 else None, step) if positions else slice(0)


def concat(ctx: Context, node: ir.Node, *operands: Any) -> Any:
    return ctx.xp.concatenate(operands, axis=ctx.attr("axis", 1) if ctx.opset < 4 else ctx.attr("axis"))


def split(ctx: Context, node: ir.Node, x: Any, sizes: Any = None) -> Any:
    """Sizes: attribute before opset 13, input from then on, else equal parts (the last one smaller from opset 18)."""
    axis = ctx.attr("axis") or 0
    lengths = ctx.int_param("split", sizes)
    if lengths is None:
        count = ctx.attr("num_outputs", None) or len(node.outputs)
        part = -(-x.shape[axis] // count)
        lengths = [max(0, min(part, x.shape[axis] - i * part)) for i in range(count)]
    if min(lengths, default=0) < 0 or sum(lengths) != x.shape[axis]:
        raise MisfitError(f"{ctx.where}: parts of {lengths} do not make up axis {axis} of size {x.shape[axis]}")
    return tuple(ctx.xp.split(x, np.cumsum(lengths)[:-1], axis=axis))


def tile(ctx: Context, node: ir.Node, x: Any, repeats: Any, axis: Any = None) -> Any:
    if ctx.opset < 6:
        counts = [1] * x.ndim
        counts[ctx.ints(axis)[0]] = ctx.ints(repeats)[0]
    else:
        counts = ctx.ints(repeats)
    ctx.check_size([n * r for n, r in zip(x.shape, counts)])
    return ctx.xp.tile(x, counts)


def pad(ctx: Context, node: ir.Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    """Negative pads crop. Pads and value are attributes before opset 11."""
    amounts = ctx.int_param("paddings" if ctx.opset < 2 else "pads", pads) or []
    over = ctx.ints(axes) if axes is not None else list(range(x.ndim))
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(over):
        widths[axis] = (amounts[i], amounts[i + len(over)])
    mode = ctx.attr("mode")
    if mode == "constant":
        fill = np.asarray(ctx.attr("value", 0.0) or 0.0, x.dtype) if value is None else value.reshape(())
        grown = _pad_up(ctx, x, widths, mode="constant", constant_values=fill)
    else:
        # reflect and edge look at the cropped tensor: a negative pad removes first.
        return _pad_up(ctx, _crop(x, widths), widths, mode=mode)
    return _crop(grown, widths)


def _pad_up(ctx: Context, x: Any, widths: list[tuple[int, int]], **options: Any) -> Any:
    up = [(max(a, 0), max(b, 0)) for a, b in widths]
    ctx.check_size([n + a + b for n, (a, b) in zip(x.shape, up)])
    return ctx.xp.pad(x, up, **options) if any(a or b for a, b in up) else x


def _crop(x: Any, widths: list[tuple[int, int]]) -> Any:
    return x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths))]


def reverse_sequence(ctx: Context, node: ir.Node, x: Any, lengths: Any) -> Any:
    time, batch = ctx.attr("time_axis"), ctx.attr("batch_axis")
    moved = jnp.moveaxis(x, (batch, time), (0, 1))
    steps = jnp.arange(moved.shape[1])[None, :]
    ends = lengths[:, None].astype(steps.dtype)
    index = jnp.where(steps < ends, ends - 1 - steps, steps)
    index = index.reshape(index.shape + (1,) * (moved.ndim - 2))
    return jnp.moveaxis(jnp.take_along_axis(moved, index, axis=1), (0, 1), (batch, time))


register("Slice", place="host")(slice_)
register("Concat", place="host")(concat)
register("Split", place="host")(split)
register("Tile", place="host")(tile)
register("Pad", place="host")(pad)
register("ReverseSequence")(reverse_sequence)
