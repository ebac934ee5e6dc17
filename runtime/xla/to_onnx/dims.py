"""Sizes of a traced program: numbers, or expressions of symbolic dims, which become Shape nodes and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder


class Dims:
    """`symbols`: name of a symbolic dim of the trace → a value whose axis has that size."""

    def __init__(self, b: Builder, symbols: Mapping[str, tuple[ir.Value, int]]) -> None:
        self._b = b
        self._symbols = symbols
        self._known: dict[Any, ir.Value] = {}

    def vector(self, sizes: Sequence[Any]) -> ir.Value:
        """Sizes as an int64 vector: a constant where all are numbers."""
        if all(isinstance(size, (int, np.integer)) for size in sizes):
            return self._b.ints(*map(int, sizes))
        return self._b.op("Concat", *(self._one(size) for size in sizes), axis=0)

    def reshape_target(self, sizes: Sequence[Any]) -> ir.Value:
        """Like `vector`, with -1 for a single size that is no number."""
        unknown = [i for i, size in enumerate(sizes) if not isinstance(size, (int, np.integer))]
        if len(unknown) == 1 and 0 not in [s for i, s in enumerate(sizes) if i != unknown[0]]:
            return self._b.ints(*(-1 if i == unknown[0] else int(size) for i, size in enumerate(sizes)))
        return self.vector(sizes)

    def _one(self, size: Any) -> ir.Value:
        if isinstance(size, (int, np.integer)):
            return self._b.ints(int(size))
        if size not in self._known:
            env = {name: _Size(self._b, self._axis(name)) for name in self._symbols}
            found = size._evaluate(env)  # jax has no public walk over its expressions; the version is pinned
            self._known[size] = found.value if isinstance(found, _Size) else self._b.ints(int(found))
        return self._known[size]

    def _axis(self, name: str) -> ir.Value:
        value, axis = self._symbols[name]
        return self._b.op("Shape", value, start=axis, end=axis + 1)


class _Size:
    """An int64 vector of one element that computes with Python's operators."""

    def __init__(self, b: Builder, value: ir.Value) -> None:
        self._b, self.value = b, value

    def _with(self, op: str, other: Any, swapped: bool = False) -> _Size:
        operand = other.value if isinstance(other, _Size) else self._b.ints(int(other))
        pair = (operand, self.value) if swapped else (self.value, operand)
        return _Size(self._b, self._b.op(op, *pair))

    def __add__(self, other: Any) -> _Size:
        return self._with("Add", other)

    def __radd__(self, other: Any) -> _Size:
        return self._with("Add", other)

    def __sub__(self, other: Any) -> _Size:
        return self._with("Sub", other)

    def __rsub__(self, other: Any) -> _Size:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Any) -> _Size:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> _Size:
        return self._with("Mul", other)

    def __floordiv__(self, other: Any) -> _Size:
        return (self - self % other)._with("Div", other)  # ONNX's Div cuts towards zero

    def __mod__(self, other: Any) -> _Size:
        return self._with("Mod", other)

    def __neg__(self) -> _Size:
        return _Size(self._b, self._b.op("Neg", self.value))
