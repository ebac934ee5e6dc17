"""Seeded input data for any model: shapes from the signature, values that the graph can take."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir
from pfvm.errors import InputError, OptionError, SizeError, did_you_mean

from .executable import TensorSpec, specs_of
from .value_ranges import Range, compared_values, input_ranges

Fill = Literal["random", "zero", "large"]

# Symbolic image sides: below this, a backbone with a total stride of 32 has nothing left.
_IMAGE_SIDE = 32
_FIRST_SIZES = (2, 3, 16)  # by seed, so that a comparison over seeds sees several
_LARGER_SIZES = (1, 8, 64, 576, 4096)
_MOST_OF_A_BATCH = 64
_MOST_ELEMENTS = 1 << 26
_D = ir.DataType


def synthesize(
    model: ir.Model,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fill: Fill = "random",
    size: int = 2,
    others: int | None = None,
    largest: int | None = None,
) -> dict[str, Any]:
    """One set of feeds for the model's required inputs; overridable initializers keep their stored values.

    seed: the same seed gives the same arrays; each input draws from a stream of its own name.
    shapes: explicit shapes by input name; a symbolic dim bound here has that size in every input.
    fill: "random" draws floats from N(0, 1) and integers from the range that the graph implies; "zero" gives zeros
        (the nearest value in the range where zero is not in it); "large" draws floats of 8 to 16, of both signs. A flag
        that the graph compares with constants is one of them, but for odd seeds and zeros.
    size: of symbolic dims that `shapes` does not bind (spatial dims of images are at least 32).
    others: where it is not None, the size of those that are not the last of several in their input. They may be a batch
        that stands alone or not first.
    largest: tensors of more elements are left out.

    Raises OptionError for a shape that names no input or has another rank, InputError for a map input.
    """
    specs = specs_of(model)[0]
    shapes = shapes or {}
    check_shapes(specs, shapes)
    open_sizes = _OpenSizes(size, others)
    sizes = _symbol_sizes(specs, shapes, open_sizes)
    extents = {spec: _shape(spec, shapes, sizes, open_sizes) for spec in specs}
    ranges = input_ranges(model, sizes)
    if seed % 2 == 0 and fill != "zero":  # else the flag is another number: a graph has to take that, too
        ranges |= _flags(model, extents, ranges, seed)
    return {
        spec.name: _value(spec, shape, ranges.get(spec.name), _generator(seed, spec.name), fill)
        for spec, shape in extents.items()
        if largest is None or spec.kind != "tensor" or math.prod(shape) <= largest
    }


def input_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...] | None]:
    """The shape of each required input where `shapes` and the signature fix it, None where they leave it open.

    A symbolic dim that `shapes` binds has that size in every input. Raises OptionError as `synthesize` does.
    """
    specs = specs_of(model)[0]
    check_shapes(specs, shapes)
    bound = _bound_sizes(specs, shapes)
    found: dict[str, tuple[int, ...] | None] = {}
    for spec in specs:
        dims: Sequence[Any] | None = shapes.get(spec.name)
        if dims is None and spec.shape is not None:
            dims = [bound.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape]
        is_fixed = dims is not None and all(isinstance(dim, int) for dim in dims)
        found[spec.name] = tuple(dims or ()) if is_fixed else None
    return found


def workable(
    model: ir.Model,
    run: Callable[[dict[str, Any]], dict[str, Any]],
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fill: Fill = "random",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Feeds that the model accepts, and its outputs for them.

    Padding, strides and windows need a least size that no signature states, so symbolic dims grow until `run` stops
    raising InputError. Raises the first InputError when no size does; a SizeError as it is where all sizes give the
    same, as then it is about dims that are fixed, and not about what is made up.
    """
    is_fixed = None not in input_shapes(model, shapes or {}).values()
    sizes = (2,) if is_fixed else (_FIRST_SIZES[seed % len(_FIRST_SIZES)], *_LARGER_SIZES)
    failures: list[InputError] = []
    for size in sizes:
        for others in (None, 2) if size > 2 else (None,):
            try:
                feeds = synthesize(model, seed, shapes, fill, size, others)
                return feeds, run(feeds)
            except InputError as error:
                failures.append(error)
    failure = failures[0]
    if isinstance(failure, SizeError) and len(set(map(str, failures))) == 1:
        raise failure
    advice = "--inputs" if is_fixed else "--inputs or --shape"
    raise InputError(f"no made-up data fits the model; give {advice} ({failure})") from failure


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """ "x=1,3,224,224" → {"x": (1, 3, 224, 224)}; "x=" is a scalar. Raises OptionError."""
    shapes = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        try:
            shape = tuple(int(d) for d in dims.split(",")) if dims.strip() else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(d < 0 for d in shape):
            raise OptionError(f"shape {text!r}: expected NAME=DIM,DIM,… as in x=1,3,224,224")
        shapes[name] = shape
    return shapes


def check_shapes(specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> None:
    known = {spec.name: spec for spec in specs}
    for name, shape in shapes.items():
        if name not in known:
            have = ", ".join(map(repr, known)) or "none"
            raise OptionError(f"shape of {name!r}: no such input; inputs: {have}{did_you_mean(name, known)}")
        declared = known[name].shape
        if declared is None:
            continue
        fits = len(declared) == len(shape) and all(not isinstance(d, int) or d == s for d, s in zip(declared, shape))
        if not fits:
            raise OptionError(f"shape of {name!r}: {list(shape)} does not fit {known[name]}")


def _flags(
    model: ir.Model, extents: Mapping[TensorSpec, tuple[int, ...]], ranges: Mapping[str, Range], seed: int
) -> dict[str, Range]:
    """For inputs of one element that the graph compares with constants: one of these, another for each seed."""
    compared = compared_values(model)
    found = {}
    for spec, shape in extents.items():
        values = compared.get(spec.name, ())
        if values and math.prod(shape) == 1:
            value = values[seed // 2 % len(values)]
            limit = ranges.get(spec.name, Range(value, value + 1))
            if limit.low <= value < limit.high:
                found[spec.name] = Range(value, value + 1)
    return found


class _OpenSizes(NamedTuple):
    """Sizes for dims that nothing fixes: `size` and `others` of `synthesize`."""

    size: int
    others: int | None

    def dim(self, spec: TensorSpec, axis: int) -> int:
        """Of an open dim."""
        shape = spec.shape or ()
        if len(shape) == 4 and axis >= 2 and spec.dtype in (_D.FLOAT, _D.FLOAT16, _D.UINT8):
            return max(self.size, _IMAGE_SIDE)
        is_open = [a for a, dim in enumerate(shape) if not isinstance(dim, int)]
        if self.others is not None and (len(is_open) == 1 or axis != is_open[-1]):
            return self.others
        if axis == 0 and len(is_open) > 1:  # a batch: it has no least size, and 4096² positions fill the memory
            return min(self.size, _MOST_OF_A_BATCH)
        return self.size


def _symbol_sizes(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], open_sizes: _OpenSizes
) -> dict[str, int]:
    sizes = _bound_sizes(specs, shapes)
    for spec in specs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str):
                sizes.setdefault(dim, open_sizes.dim(spec, axis))
    return sizes


def _bound_sizes(specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Those that the given shapes fix."""
    sizes: dict[str, int] = {}
    for spec in specs:
        for dim, given in zip(spec.shape or (), shapes.get(spec.name, ())):
            if isinstance(dim, str) and sizes.setdefault(dim, given) != given:
                raise OptionError(f"shape of {spec.name!r}: {dim!r} is {given} here and {sizes[dim]} in another input")
    return sizes


def _shape(
    spec: TensorSpec, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int], open_sizes: _OpenSizes
) -> tuple[int, ...]:
    if spec.name in shapes:
        return tuple(shapes[spec.name])
    if spec.shape is None:
        return (open_sizes.size, open_sizes.size)
    return tuple(
        dim if isinstance(dim, int) else sizes[dim] if isinstance(dim, str) else open_sizes.dim(spec, axis)
        for axis, dim in enumerate(spec.shape)
    )


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _value(spec: TensorSpec, shape: tuple[int, ...], limit: Range | None, rng: np.random.Generator, fill: Fill) -> Any:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise InputError(f"input {spec.name!r} ({spec}): {list(shape)} is too large for made-up data; give --shape")
    if "map" in spec.kind or spec.dtype is None:
        raise InputError(f"input {spec.name!r} ({spec}): no data can be made up for this type; give --inputs")
    if "sequence" in spec.kind:
        return [_tensor(spec.dtype, shape, limit, rng, fill) for _ in range(2)]
    return _tensor(spec.dtype, shape, limit, rng, fill)


def _tensor(
    dtype: ir.DataType, shape: tuple[int, ...], limit: Range | None, rng: np.random.Generator, fill: Fill
) -> np.ndarray:
    if dtype == _D.STRING:
        words = np.zeros(shape, int) if fill == "zero" else rng.integers(0, 4, shape)
        return np.asarray([f"s{w}" for w in np.ravel(words)], dtype=object).reshape(shape)
    if limit is not None and limit.exact is not None:
        count = int(np.prod(shape))
        elements = [*limit.exact, *([1] * count)][:count]
        return np.array(elements).reshape(shape).astype(dtype.numpy())
    if fill == "zero":
        nearest = 0 if limit is None else min(max(0, limit.low), limit.high - 1)
        return np.full(shape, nearest).astype(dtype.numpy())
    if dtype.is_floating_point() or dtype in (_D.COMPLEX64, _D.COMPLEX128):
        return _floats(dtype, shape, limit, rng, fill)
    return _integers(dtype, shape, limit, rng)


def _floats(
    dtype: ir.DataType, shape: tuple[int, ...], limit: Range | None, rng: np.random.Generator, fill: Fill
) -> np.ndarray:
    if limit is not None:  # a float that the graph casts to an index or a count
        return rng.integers(limit.low, limit.high, shape).astype(dtype.numpy())
    if fill == "large":
        drawn = np.asarray(rng.uniform(8, 16, shape) * rng.choice((-1.0, 1.0), shape))
    else:
        drawn = np.asarray(rng.standard_normal(shape))
    if dtype in (_D.COMPLEX64, _D.COMPLEX128):
        return (drawn + 1j * rng.standard_normal(shape)).astype(dtype.numpy())
    return np.asarray(drawn, np.float32 if dtype != _D.DOUBLE else np.float64).astype(dtype.numpy())


def _integers(dtype: ir.DataType, shape: tuple[int, ...], limit: Range | None, rng: np.random.Generator) -> np.ndarray:
    if limit is None:
        # Bytes are pictures or quantized data; other integers are counts, ids or flags, which are small.
        limit = Range(0, 2 if dtype == _D.BOOL or dtype.bitwidth < 8 else 100 if dtype.bitwidth == 8 else 3)
    if dtype == _D.BOOL:
        limit = limit.meet(Range(0, 2))
    return np.asarray(rng.integers(limit.low, limit.high, shape)).astype(dtype.numpy())
