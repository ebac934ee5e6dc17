"""What moves, cuts, joins and repeats elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .translate import Translator, dtype_of, in_shape, lowers, out_shape, static, to_shape

_FIRST = -(1 << 62)  # as an end of a slice that runs backwards: the first element included


@lowers("broadcast_in_dim")
def _broadcast_in_dim(t: Translator, eqn: Any, x: ir.Value, *_sizes: ir.Value) -> ir.Value:
    shape, given = out_shape(eqn), in_shape(eqn)
    axes = [int(axis) for axis in eqn.params["broadcast_dimensions"]]
    placed: list[Any] = [1] * len(shape)
    for size, axis in zip(given, axes):
        placed[axis] = size
    if given:
        x = t.reshape(x, placed)
    if (given or not shape) and placed == list(shape):
        return x
    return t.b.op("Expand", x, t.dims.vector(shape))


@lowers("reshape", "squeeze", "expand_dims")
def _reshape(t: Translator, eqn: Any, x: ir.Value, *_sizes: ir.Value) -> ir.Value:
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    if order is not None:  # the elements are read in this order of the axes
        x = t.b.transpose(x, [int(axis) for axis in order])
    elif list(out_shape(eqn)) == list(in_shape(eqn)):
        return x
    return t.b.op("Reshape", x, t.dims.reshape_target(out_shape(eqn)))


@lowers("transpose")
def _transpose(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    return t.b.transpose(x, [int(axis) for axis in eqn.params["permutation"]])


@lowers("concatenate")
def _concatenate(t: Translator, eqn: Any, *operands: ir.Value) -> ir.Value:
    return t.b.op("Concat", *operands, axis=eqn.params["dimension"])


@lowers("split")
def _split(t: Translator, eqn: Any, x: ir.Value) -> Any:
    sizes = eqn.params["sizes"]
    return t.b.ops(len(sizes), "Split", x, t.dims.vector(sizes), axis=eqn.params["axis"])


@lowers("rev")
def _rev(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    axes = list(eqn.params["dimensions"])
    count = len(axes)
    b = t.b
    return b.op("Slice", x, b.ints(*[-1] * count), b.ints(*[_FIRST] * count), b.ints(*axes), b.ints(*[-1] * count))


@lowers("slice")
def _slice(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    shape = in_shape(eqn)
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or (1,) * len(shape)
    axes = [i for i, size in enumerate(shape) if not (starts[i] == 0 and limits[i] == size and steps[i] == 1)]
    if not axes:
        return x
    at = [t.dims.vector([values[i] for i in axes]) for values in (starts, limits)]
    return t.b.op("Slice", x, *at, t.b.ints(*axes), t.b.ints(*(int(steps[i]) for i in axes)))


@lowers("pad")
def _pad(t: Translator, eqn: Any, x: ir.Value, value: ir.Value) -> ir.Value:
    return pad(t, x, value, list(in_shape(eqn)), eqn.params["padding_config"])


def pad(
    t: Translator, x: ir.Value, value: ir.Value, shape: list[Any], config: Sequence[tuple[Any, Any, int]]
) -> ir.Value:
    """`value` before, after and between the elements of each axis; negative numbers cut."""
    b = t.b
    for axis, (_, _, inner) in enumerate(config):
        if inner and shape[axis] != 1:
            apart = t.reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            after = [0] * (len(shape) + 1)
            after[axis + 1] = inner
            apart = b.op("Pad", apart, b.ints(*[0] * (len(shape) + 1), *after), value)
            stretched = shape[axis] * (inner + 1)
            joined = b.op("Reshape", apart, t.dims.reshape_target([*shape[:axis], stretched, *shape[axis + 1 :]]))
            x = b.op("Slice", joined, b.ints(0), b.ints(-inner), b.ints(axis))
            shape = [*shape[:axis], stretched - inner, *shape[axis + 1 :]]
            x.shape = to_shape(shape)
    if any(low or high for low, high, _ in config):
        x = b.op("Pad", x, t.dims.vector([*(low for low, _, _ in config), *(high for _, high, _ in config)]), value)
    return x


@lowers("iota")
def _iota(t: Translator, eqn: Any, *_sizes: ir.Value) -> ir.Value:
    shape, axis = out_shape(eqn), eqn.params["dimension"]
    dtype = dtype_of(eqn.outvars[0].aval)
    if isinstance(shape[axis], (int, np.integer)):
        numbers = t.constant(np.arange(shape[axis], dtype=np.int64).astype(dtype.numpy()))
    else:
        b = t.b
        zero, one = b.constant(np.int64(0)), b.constant(np.int64(1))
        numbers = b.cast(b.op("Range", zero, b.op("Squeeze", t.dims.vector([shape[axis]])), one), dtype)
    placed = [1] * len(shape)
    placed[axis] = shape[axis]
    numbers = t.reshape(numbers, placed)
    return numbers if list(shape) == placed else t.b.op("Expand", numbers, t.dims.vector(shape))


@lowers("dynamic_slice")
def _dynamic_slice(t: Translator, eqn: Any, x: ir.Value, *starts: ir.Value) -> ir.Value:
    sizes, shape = eqn.params["slice_sizes"], in_shape(eqn)
    starts = starts[: len(shape)]
    axes = [i for i, size in enumerate(sizes) if not (size is shape[i] or size == shape[i])]
    if not axes:
        return x
    b = t.b
    first = _clamped(t, [starts[i] for i in axes], [shape[i] for i in axes], [sizes[i] for i in axes])
    end = b.op("Add", first, t.dims.vector([sizes[i] for i in axes]))
    return b.op("Slice", x, first, end, b.ints(*axes))


def _clamped(t: Translator, starts: list[ir.Value], shape: Sequence[Any], sizes: Sequence[Any]) -> ir.Value:
    """Starts as one int64 vector, moved so that the slice lies inside."""
    b = t.b
    one = b.ints(1)
    joined = b.op("Concat", *(b.op("Reshape", b.cast(s, ir.DataType.INT64), one) for s in starts), axis=0)
    last = b.op("Sub", t.dims.vector(shape), t.dims.vector(sizes))
    return b.op("Max", b.op("Min", joined, last), b.ints(0))


@lowers("dynamic_update_slice")
def _dynamic_update_slice(t: Translator, eqn: Any, x: ir.Value, update: ir.Value, *starts: ir.Value) -> ir.Value:
    b = t.b
    shape, sizes = in_shape(eqn), static(in_shape(eqn, 1), "dynamic_update_slice")
    first = _clamped(t, list(starts), shape, sizes)
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij"), -1).astype(np.int64)
    return b.op("ScatterND", x, b.op("Add", b.constant(grid), first), update)


@lowers("unstack")
def _unstack(t: Translator, eqn: Any, x: ir.Value) -> list[ir.Value]:
    axis = eqn.params["axis"]
    ones = t.b.ints(*[1] * len(eqn.outvars))
    parts = t.b.ops(len(eqn.outvars), "Split", x, ones, axis=axis) if len(eqn.outvars) > 1 else (x,)
    return [t.b.op("Squeeze", part, t.b.ints(axis)) for part in parts]


@lowers("empty", "empty2")
def _empty(t: Translator, eqn: Any, *_: ir.Value) -> ir.Value:
    """What a branch that is not taken leaves behind; nothing reads its elements."""
    aval = eqn.outvars[0].aval
    zero = ir.tensor(np.zeros(1, aval.dtype))
    return t.b.op("ConstantOfShape", t.dims.vector(aval.shape), value=zero)
