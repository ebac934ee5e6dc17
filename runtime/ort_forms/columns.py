"""Windows of an image as a matrix, the operand of one large product in the place of many small ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from pfvm.passes.dims import static_shape
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.view import RUNTIME, constant_tensor

# Slice and Pad take inputs from here on in the one form that is written.
_FIRST_OPSET = 13


class Operands(NamedTuple):
    """A float32 Conv or ConvTranspose of one group, every size known; one entry per spatial axis in the last five."""

    x: ir.Value
    w: ir.Value
    bias: ir.Value | None
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def kernel(self) -> tuple[int, ...]:
        """Sizes of the window."""
        return self.w_shape[2:]


def operands(node: ir.Node, rw: Rewriter) -> Operands | None:
    """What a convolution reads; None where its weights are constant (ORT packs those), or something is not known."""
    view = rw.view(node)
    x, w = view.at(0), view.at(1)
    if x is None or w is None or x.dtype != ir.DataType.FLOAT or constant_tensor(w) is not None:
        return None
    x_shape, w_shape, y_shape = static_shape(x), static_shape(w), static_shape(node.outputs[0])
    if (rw.opset(node) or 0) < _FIRST_OPSET or x_shape is None or w_shape is None or y_shape is None:
        return None
    given: dict[str, Any] = {name: view.attr(name) for name in ("group", "auto_pad", "strides", "dilations", "pads")}
    if RUNTIME in given.values() or given["group"] != 1 or given["auto_pad"] not in ("NOTSET", "VALID"):
        return None
    if not math.prod(x_shape) or not math.prod(w_shape) or not math.prod(y_shape):
        return None
    rank = len(x_shape) - 2
    pads = tuple(given["pads"] or (0,) * 2 * rank) if given["auto_pad"] == "NOTSET" else (0,) * 2 * rank
    strides, dilations = (tuple(given[name] or (1,) * rank) for name in ("strides", "dilations"))
    return Operands(x, w, view.at(2), x_shape, w_shape, y_shape, strides, dilations, pads[:rank], pads[rank:])


def one_product_pays_off(images: int, places: int, weights: int) -> bool:
    """Whether one product for all images is better than one for each, which reads all weights for its few places."""
    return images > 1 and (places <= 16 or (places <= 64 and weights >= 1 << 16))


def kernel_ranges(o: Operands, sizes: Sequence[int]) -> list[list[range]]:
    """Per spatial axis and place in the window: the rows of the padded image that it meets in `sizes` outputs."""
    return [
        [range(place * d, place * d + (size - 1) * s + 1, s) for place in range(k)]
        for k, s, d, size in zip(o.kernel, o.strides, o.dilations, sizes)
    ]


def output_ranges(o: Operands, sizes: Sequence[int]) -> list[list[range]]:
    """Per spatial axis and output: the rows of the padded image that its window covers, for the first `sizes`."""
    return [
        [range(i * s, i * s + (k - 1) * d + 1, d) for i in range(size)]
        for k, s, d, size in zip(o.kernel, o.strides, o.dilations, sizes)
    ]


def padded(x: ir.Value, o: Operands, first: int, at: ir.Node, rw: Rewriter) -> ir.Value:
    """Zeros around the spatial axes, of which x has the first at axis `first`."""
    if not any((*o.begins, *o.ends)):
        return x
    shape = static_of(x)
    before, after = [0] * first, [0] * (len(shape) - first - len(o.begins))
    begins, ends = [*before, *o.begins, *after], [*before, *o.ends, *after]
    result = rw.op("Pad", x, at=at, pads=[*begins, *ends]).outputs[0]
    return known(result, [size + begin + end for size, begin, end in zip(shape, begins, ends)])


def taps(x: ir.Value, first: int, ranges: Sequence[Sequence[range]], at: ir.Node, rw: Rewriter) -> list[ir.Value]:
    """For each combination of one range per axis, the last axis fastest, those rows of x; axes count from `first`.

    The last axis is cut first: what the other axes cut are then long rows.
    """
    found: dict[tuple[int, ...], ir.Value] = {(): x}
    for axis, places in reversed(list(enumerate(ranges, first))):
        found = {
            (i, *rest): _rows(value, axis, rows, at, rw)
            for rest, value in found.items()
            for i, rows in enumerate(places)
        }
    return [found[place] for place in itertools.product(*(range(len(places)) for places in ranges))]


def _rows(value: ir.Value, axis: int, rows: range, at: ir.Node, rw: Rewriter) -> ir.Value:
    ends = [rows.stop]
    return rw.op("Slice", value, at=at, starts=[rows.start], ends=ends, axes=[axis], steps=[rows.step]).outputs[0]


def columns(
    o: Operands, x: ir.Value, first: int, ranges: Sequence[Sequence[range]], at: ir.Node, rw: Rewriter
) -> ir.Value:
    """[A · taps, …]: the matrix of every tap of an image x [A, …] whose spatial axes are those from `first` on."""
    shape = static_of(x)
    found = taps(padded(reshape(x, [shape[0], 1, *shape[1:]], at, rw), o, first + 1, at, rw), first + 1, ranges, at, rw)
    joined = found[0] if len(found) == 1 else rw.op("Concat", *found, at=at, axis=1).outputs[0]
    others = math.prod(shape[1:first]) * math.prod(shape[first + len(ranges) :])
    size = others * math.prod(len(places[0]) for places in ranges)
    return reshape(joined, [shape[0] * len(found), size], at, rw)


def static_of(value: ir.Value) -> tuple[int, ...]:
    """A shape that is known to be static."""
    shape = static_shape(value)
    assert shape is not None, f"{value.name} has shape {value.shape}"
    return shape


def reshape(value: ir.Value, shape: Sequence[int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """Reshape to a known shape."""
    return known(rw.op("Reshape", value, at=at, shape=list(shape)).outputs[0], shape)


def transpose(value: ir.Value, perm: Sequence[int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """Transpose of a value of known shape."""
    shape = [static_of(value)[axis] for axis in perm]
    return known(rw.op("Transpose", value, at=at, perm=list(perm)).outputs[0], shape)


def known(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The value, declared as float32 of this shape."""
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
    return value
