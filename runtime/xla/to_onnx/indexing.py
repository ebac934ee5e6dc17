"""lax.gather and lax.scatter: every element's place in the flat operand is computed, then gathered or scattered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.lax import GatherScatterMode

from .translate import Translator, in_shape, lowers, out_shape, static

_SCATTERS = {
    "scatter": "none",
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter_mul": "mul",
    "scatter-mul": "mul",
    "scatter_min": "min",
    "scatter_max": "max",
}


class _Places:
    """Places of windows in a flat operand: for the windows of a gather's result or a scatter's updates.

    window: axis of the operand → its axis in the result; batch: the result's other axes, in order; sizes of the window
    along every axis of the operand.
    """

    def __init__(
        self, t: Translator, shape: Sequence[int], windows: dict[int, int], rank: int, sizes: Sequence[int]
    ) -> None:
        self.t, self.shape, self.windows, self.rank, self.sizes = t, shape, windows, rank, sizes
        self.strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        self.batch = [axis for axis in range(rank) if axis not in windows.values()]

    def __call__(
        self, indices: ir.Value, index_shape: Sequence[int], mapped: Sequence[int], batching: dict[int, int], clip: bool
    ) -> tuple[ir.Value, ir.Value | None]:
        """The places, int64 of the result's rank, and which are inside the operand (None: all are, or were moved).

        indices: [..., len(mapped)]; batching: axis of the operand → axis of the indices that counts along with it.
        """
        b, t = self.t.b, self.t
        indices = b.cast(indices, ir.DataType.INT64)
        base = self._placed(np.zeros([1] * self.rank, np.int64))
        total: ir.Value | None = None
        inside: ir.Value | None = None
        for column, axis in enumerate(mapped):
            start = b.op("Gather", indices, b.constant(np.int64(column)), axis=len(index_shape) - 1)
            start = t.reshape(start, self._batch_shape(index_shape[:-1]))
            last = self.shape[axis] - self.sizes[axis]
            if clip:
                start = b.op("Max", b.op("Min", start, b.constant(np.int64(last))), b.constant(np.int64(0)))
            else:
                good = b.op("And", b.op("GreaterOrEqual", start, b.constant(np.int64(0))),
                            b.op("LessOrEqual", start, b.constant(np.int64(last))))  # fmt: skip
                inside = good if inside is None else b.op("And", inside, good)
            part = b.op("Mul", start, b.constant(np.int64(self.strides[axis]))) if self.strides[axis] != 1 else start
            total = part if total is None else b.op("Add", total, part)
        for axis, position in self.windows.items():
            base = base + self._along(np.arange(self.sizes[axis]) * self.strides[axis], position)
        for axis, position in batching.items():
            base = base + self._along(np.arange(index_shape[position]) * self.strides[axis], self.batch[position])
        constant = b.constant(base.astype(np.int64))
        return (constant if total is None else b.op("Add", total, constant)), inside

    def _placed(self, array: np.ndarray) -> np.ndarray:
        return array

    def _along(self, numbers: np.ndarray, position: int) -> np.ndarray:
        shape = [1] * self.rank
        shape[position] = len(numbers)
        return numbers.reshape(shape)

    def _batch_shape(self, sizes: Sequence[int]) -> list[int]:
        shape = [1] * self.rank
        for position, size in zip(self.batch, sizes):
            shape[position] = size
        return shape


def _whole_rows(
    eqn: Any, dropped: Sequence[int], batching: Sequence[int], mapped: Sequence[int], windows: Sequence[int]
) -> list[int] | None:
    """Where the indices are numbers of rows along one axis, whatever the sizes: the axes that count rows, in the
    gather's result or the scatter's updates. Else None.
    """
    rank = len(in_shape(eqn))
    if batching or len(mapped) != 1 or list(mapped) != list(dropped) or len(windows) != rank - 1:
        return None
    sizes = eqn.params.get("slice_sizes")
    if sizes is None:  # a scatter: its windows are rows where they have the operand's sizes
        given = in_shape(eqn, 2)
        kept = [size for i, size in enumerate(in_shape(eqn)) if i not in dropped]
        whole = [given[i] for i in windows] == kept
        total = len(given)
    else:
        whole = all(i in dropped or sizes[i] == size for i, size in enumerate(in_shape(eqn)))
        total = len(eqn.outvars[0].aval.shape)
    return [i for i in range(total) if i not in windows] if whole else None


@lowers("gather")
def _gather(t: Translator, eqn: Any, x: ir.Value, indices: ir.Value) -> ir.Value:
    p, b = eqn.params, t.b
    d = p["dimension_numbers"]
    inner = _whole_rows(eqn, d.collapsed_slice_dims, d.operand_batching_dims, d.start_index_map, d.offset_dims)
    if inner is not None and p["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS:
        (axis,) = d.collapsed_slice_dims
        rank, count = len(in_shape(eqn)), len(inner)
        found = b.op("Gather", x, b.op("Squeeze", indices, b.ints(count)), axis=axis)
        order = [*d.offset_dims[:axis], *inner, *d.offset_dims[axis:]]  # where each axis of `found` goes
        return b.transpose(found, [order.index(i) for i in range(rank - 1 + count)])
    sizes = static(p["slice_sizes"], "gather")
    shape = static(in_shape(eqn), "gather")
    index_shape, result = static(in_shape(eqn, 1), "gather"), static(out_shape(eqn), "gather")
    kept = [i for i in range(len(shape)) if i not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
    places = _Places(t, shape, dict(zip(kept, d.offset_dims)), len(result), sizes)
    batching = dict(zip(d.operand_batching_dims, d.start_indices_batching_dims))
    fill = p["mode"] == GatherScatterMode.FILL_OR_DROP
    where, inside = places(indices, index_shape, d.start_index_map, batching, clip=not fill)
    if inside is not None:
        where = b.op("Where", inside, where, b.constant(np.int64(0)))
    found = b.op("Gather", b.op("Reshape", x, b.ints(-1)), where)
    if inside is not None:
        dtype = np.dtype(eqn.outvars[0].aval.dtype)
        missing = p["fill_value"] if p["fill_value"] is not None else (np.nan if dtype.kind == "f" else 0)
        found = b.op("Where", inside, found, t.constant(np.asarray(missing, dtype)))
    return found if list(_dims(found)) == result else b.op("Expand", found, b.ints(*result))


def _dims(value: ir.Value) -> list[Any]:
    return [d if isinstance(d, int) else None for d in value.shape or ()]


@lowers(*_SCATTERS)
def _scatter(t: Translator, eqn: Any, x: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    p, b = eqn.params, t.b
    d = p["dimension_numbers"]
    mode = _SCATTERS[eqn.primitive.name]
    inner = _whole_rows(
        eqn, d.inserted_window_dims, d.operand_batching_dims, d.scatter_dims_to_operand_dims, d.update_window_dims
    )
    if inner is not None and p["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS:
        (axis,) = d.inserted_window_dims
        perm = [axis, *(i for i in range(len(in_shape(eqn))) if i != axis)]
        rows = b.transpose(updates, [*inner, *d.update_window_dims])
        where = b.cast(indices, ir.DataType.INT64)
        spread = b.op("ScatterND", b.transpose(x, perm), where, rows, reduction=mode)
        return b.transpose(spread, np.argsort(perm).tolist())
    shape, index_shape, given = (static(in_shape(eqn, i), "scatter") for i in range(3))
    kept = [i for i in range(len(shape)) if i not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    windows = dict(zip(kept, d.update_window_dims))
    sizes = [given[windows[i]] if i in windows else 1 for i in range(len(shape))]
    places = _Places(t, shape, windows, len(given), sizes)
    batching = dict(zip(d.operand_batching_dims, d.scatter_indices_batching_dims))
    drop = p["mode"] == GatherScatterMode.FILL_OR_DROP
    where, inside = places(indices, index_shape, d.scatter_dims_to_operand_dims, batching, clip=not drop)
    flat, one, count = b.op("Reshape", x, b.ints(-1)), b.ints(-1), int(np.prod(shape, dtype=np.int64))
    if inside is not None:  # what falls outside goes to an element behind the last
        where = b.op("Where", inside, where, b.constant(np.int64(count)))
        flat = b.op("Pad", flat, b.ints(0, 1), b.like(0, x))
    where = b.op("Reshape", b.op("Expand", where, b.ints(*given)), one)
    spread = b.op("ScatterElements", flat, where, b.op("Reshape", updates, one), axis=0, reduction=mode)
    if inside is not None:
        spread = b.op("Slice", spread, b.ints(0), b.ints(count))
    return b.op("Reshape", spread, b.ints(*shape))
