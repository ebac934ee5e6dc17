"""Buckets: inputs padded along a symbolic dimension to one of a few sizes, so that few programs serve all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.errors import OptionError, SizeError
from pfvm.runtime.executable import TensorSpec

from .rows import rows_of_outputs


class Buckets:
    """Pads the inputs of a call and cuts its results back.

    sizes: for each symbolic dimension the sizes to pad to. Raises OptionError where the rows along it are not proved to
    be independent of each other (see `rows`).
    """

    def __init__(self, model: ir.Model, inputs: Sequence[TensorSpec], sizes: Mapping[str, Sequence[int]]) -> None:
        self._sizes = {symbol: _checked(symbol, given) for symbol, given in sizes.items()}
        self._inputs = [spec for spec in inputs if spec.shape is not None]
        self._outputs = {symbol: rows_of_outputs(model, symbol) for symbol in self._sizes}

    def pad(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """The padded feeds, and the number of rows that were given along each symbol. Raises SizeError."""
        padded, given = dict(feeds), {}
        for symbol, sizes in self._sizes.items():
            for spec in self._inputs:
                if symbol not in (spec.shape or ()) or spec.name not in feeds:
                    continue
                axis = (spec.shape or ()).index(symbol)
                count = given[symbol] = np.shape(feeds[spec.name])[axis]
                size = next((size for size in sizes if size >= count), None)
                if size is None:
                    raise SizeError(
                        f"input {spec.name!r}: dim {axis} ({symbol!r}) is {count}, more than the largest bucket, "
                        f"{sizes[-1]}"
                    )
                padded[spec.name] = _padded(padded[spec.name], axis, size)
        return padded, given

    def cut(self, results: dict[str, Any], given: Mapping[str, int]) -> dict[str, Any]:
        """The results without the rows that were added."""
        for symbol, count in given.items():
            for name, rows in self._outputs[symbol].items():
                kept = slice(0, count * rows.factor)
                results[name] = results[name][(slice(None),) * rows.axis + (kept,)]
        return results


def _padded(array: Any, axis: int, size: int) -> Any:
    """Rows are added by repeating the last one, which is valid data whatever the model does; zeros where none is."""
    count = np.shape(array)[axis]
    if count == size:
        return array
    widths = [(0, size - count) if i == axis else (0, 0) for i in range(np.ndim(array))]
    return np.pad(np.asarray(array), widths, mode="edge" if count else "constant")


def _checked(symbol: str, sizes: Sequence[int]) -> list[int]:
    listed = isinstance(sizes, Sequence) and len(sizes) > 0
    if not listed or any(type(size) is not int or not 1 <= size < 10**9 for size in sizes):
        raise OptionError(f"bucket {symbol!r}: sizes must be integers from 1 to a billion, not {sizes!r}")
    return sorted(set(sizes))
