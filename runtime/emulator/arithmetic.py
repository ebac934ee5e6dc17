"""How a machine rounds: values to their dtype, operands of products to block floats, sums to the accumulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.machine import Machine, MatrixMode

from .formats import Blocked, round_blocks, round_to
from .sums import rounded_product, rounded_sum

Array = np.ndarray

ACCUMULATOR = "Float"


class Arithmetic:
    """The machine's arithmetic; with `exact`, none of its rounding: every float in float64."""

    def __init__(self, machine: Machine, exact: bool = False) -> None:
        self.machine = machine
        self.exact = exact

    def store(self, x: Array, dtype: str, onnx_dtype: ir.DataType | None) -> Array:
        """A result as its value keeps it: float64 rounded to the device dtype, integers in the ONNX type's range."""
        if x.dtype == np.bool_:
            return x
        if x.dtype.kind in "iu" or (onnx_dtype is not None and onnx_dtype.is_integer()):
            return wrapped(x, onnx_dtype)
        if self.exact or not self.machine.dtypes[dtype].is_float:
            return x
        return round_to(x, self.machine.dtypes[dtype])

    def accumulated(self, x: Array) -> Array:
        """A finished sum, as the accumulator holds it."""
        if self.exact or x.dtype.kind != "f":
            return x
        return round_to(x, self.machine.dtypes[ACCUMULATOR])

    def mode(self, dtype: str) -> MatrixMode | None:
        """The matrix unit's mode for operands of a dtype."""
        return self.machine.matrix_unit.modes.get(dtype)

    def blocks(self, x: Array, axis: int, dtype: str | None, most: int | None = None) -> Blocked:
        """An operand of a product, in the block float of its dtype along the axis. most: numbers of a block."""
        mode = None if self.exact or dtype is None else self.mode(dtype)
        return (
            Blocked(x, 0.0)
            if mode is None
            else round_blocks(x, axis, min(mode.block, most or mode.block), mode.block_mantissa)
        )

    def product(self, a: Blocked, b: Blocked) -> Array:
        """a [batch, m, k] · b [batch, k, n], accumulated; a batch of 1 is repeated."""
        total = self._multiply(a.values, b.values)
        if self.exact:
            return total
        if not (a.step and b.step):  # operands without a format: nothing bounds their products' digits
            return self.accumulated(total)
        return rounded_product(total, a.values, b.values, (a.step, b.step), self.accumulated)

    def sum(self, x: Array, axes: Sequence[int]) -> Array:
        """The sum over the axes, kept with size 1, accumulated. Integers add up exactly."""
        total = self._add(x, axes)
        if self.exact or x.dtype.kind != "f":
            return total
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        terms = np.transpose(x, [*kept, *axes]).reshape(*(x.shape[axis] for axis in kept), -1)
        flat = rounded_sum(total.reshape(terms.shape[:-1]), terms, self.accumulated)
        return flat.reshape(total.shape)

    def _multiply(self, a: Array, b: Array) -> Array:
        return np.matmul(a, b)

    def _add(self, x: Array, axes: Sequence[int]) -> Array:
        return np.sum(x, axis=tuple(axes), keepdims=True)


class CellArithmetic(Arithmetic):
    """Sums formed as the cells form them: a partial sum of what lies in each cell, then over the cells.

    contracted: positions along the contracted axis of a product, those of each matrix unit together; reduced: along an
    axis of a reduction's operand, those of each innermost cell. As rounded sums do not depend on their order, the
    results are those of Arithmetic.
    """

    def __init__(
        self, plain: Arithmetic, contracted: Sequence[Array] = (), reduced: Mapping[int, Sequence[Array]] | None = None
    ) -> None:
        super().__init__(plain.machine, plain.exact)
        self._contracted, self._reduced = contracted, reduced or {}

    def _multiply(self, a: Array, b: Array) -> Array:
        parts = self._contracted
        if sum(map(len, parts)) != a.shape[-1]:
            return super()._multiply(a, b)
        total = np.zeros((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), np.result_type(a, b))
        for part in parts:
            total += np.matmul(a[..., part], b[:, part])
        return total

    def _add(self, x: Array, axes: Sequence[int]) -> Array:
        for axis in axes:
            parts = self._reduced.get(axis, ())
            if sum(map(len, parts)) == x.shape[axis]:
                x = np.concatenate([x.take(part, axis).sum(axis=axis, keepdims=True) for part in parts], axis)
            x = x.sum(axis=axis, keepdims=True)
        return x


def wrapped(x: Array, onnx_dtype: ir.DataType | None) -> Array:
    """Numbers as an integer type of ONNX holds them, as int64, or as uint64 where that is the type."""
    if onnx_dtype == ir.DataType.UINT64:
        return x.astype(np.uint64, copy=False) if x.dtype.kind in "iu" else _unsigned(x)
    whole = x.astype(np.int64, copy=False)
    if onnx_dtype is None or onnx_dtype == ir.DataType.INT64 or not onnx_dtype.is_integer():
        return whole
    return whole.astype(onnx_dtype.numpy()).astype(np.int64)


def _unsigned(x: Array) -> Array:
    """Floats as uint64; negative ones wrap around."""
    return np.where(x < 0, x.astype(np.int64).astype(np.uint64), x.astype(np.uint64))
