"""Convolutions of stride 1, and two of them in a row on pairs of columns: the steps that TPU passes share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from .dims import static_shape
from .dtypes import ALL_FLOATS
from .rewriter import Rewriter
from .view import is_parameterized

_UNIT = 128
"""Rows and columns of a TPU's matrix unit, and channels that it multiplies at a time (facts of v2 to v5p)."""


class Convolution(NamedTuple):
    """A Conv of stride 1, not dilated and not grouped, of images of static size [N, C, H, W]."""

    node: ir.Node
    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]
    """Top, left, bottom, right."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of what it reads."""
        shape = static_shape(self.source)
        assert shape is not None
        return shape[2], shape[3]

    @property
    def result_size(self) -> tuple[int, int]:
        """Rows and columns of its result."""
        (rows, columns), (top, left, bottom, right) = self.size, self.pads
        return rows + top + bottom - self.kernel[0] + 1, columns + left + right - self.kernel[1] + 1

    @property
    def channels(self) -> tuple[int, int]:
        """Of its result, and of what it reads."""
        shape = static_shape(self.weight)
        assert shape is not None
        return shape[0], shape[1]

    @property
    def is_narrow(self) -> bool:
        """Whether a matrix unit is not full."""
        return min(self.channels) < _UNIT


def convolution(node: ir.Node | None, rw: Rewriter) -> Convolution | None:
    """The node as a Convolution, None where it is none."""
    if node is None or node.op_type != "Conv" or not rw.is_standard(node) or is_parameterized(node):
        return None
    if (rw.opset(node) or 0) < 13:
        return None
    view, source, weight = rw.view(node), node.inputs[0], node.inputs[1]
    out, shape = static_shape(node.outputs[0]), static_shape(weight) if weight is not None else None
    if source is None or weight is None or source.dtype not in ALL_FLOATS or out is None or shape is None:
        return None
    if len(shape) != 4 or static_shape(source) is None or view.attr("group") != 1 or view.attr("auto_pad") != "NOTSET":
        return None
    if {*(view.attr("strides") or (1,)), *(view.attr("dilations") or (1,))} != {1}:
        return None
    pads = tuple(view.attr("pads") or (0, 0, 0, 0))
    return Convolution(node, source, weight, view.at(2), (shape[2], shape[3]), pads)


def halves_all(pool: ir.Node, rows: int, rw: Rewriter) -> bool:
    """Whether a MaxPool is of 2×2 windows beside each other over all of an even number of rows."""
    view = rw.view(pool)
    names = ("dilations", "pads", "ceil_mode", "storage_order")
    plain = all(view.attr(name) in (None, (1, 1), (0, 0, 0, 0), 0) for name in names)
    windows = view.attr("kernel_shape") == (2, 2) and view.attr("strides") == (2, 2)
    return windows and plain and view.attr("auto_pad") == "NOTSET" and rows % 2 == 0


# ---- what writes pairs


def first_weight(weight: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[O, I, h, w] → [2·O, I, h, w + 1]: of the convolution that writes the columns 2j − 1 and 2j."""
    return join([widened(weight, (o, 1 - o), at, rw) for o in (0, 1)], at, rw)


def first_pads(conv: Convolution) -> list[int]:
    """The padding of that convolution: one column more on each side."""
    top, left, bottom, right = conv.pads
    return [top, left + 1, bottom, right + 1]


def write_pairs(conv: Convolution, weight: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """The columns (−1, 0), (1, 2), … as channels [2·O] of W / 2 + 1 columns; the outermost two are not there."""
    operands = [conv.source, weight, *twice(conv.bias, at, rw)]
    return rw.op("Conv", *operands, at=at, pads=first_pads(conv), strides=[1, 2]).outputs[0]


def pairs_mask(value: ir.Value, columns: int, at: ir.Node, rw: Rewriter) -> ir.Value:
    """One where a pair's column is there, zero at the two that are not."""
    assert value.shape is not None and value.dtype is not None
    channels = value.shape[1]
    assert isinstance(channels, int)
    mask = np.ones((1, 2, channels // 2, 1, columns // 2 + 1), value.dtype.numpy())
    mask[:, 0, ..., 0] = mask[:, 1, ..., -1] = 0
    return rw.constant(mask.reshape(1, channels, 1, -1), "paired_columns_mask", at)


# ---- what reads pairs


def second_weight(weight: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[O, I, h, 3] → [2·O, 2·I, h, 2]: of the convolution from pairs (2j − 1, 2j) to pairs (2j, 2j + 1)."""
    shape = static_shape(weight)
    assert shape is not None
    out, inner, height, _ = shape
    halves = []
    for o in (0, 1):  # the taps of column 2j + o among those of 2j − 1 … 2j + 2
        taps = widened(weight, (o, 1 - o), at, rw)
        split = rw.op("Reshape", taps, at=at, shape=[out, inner, height, 2, 2]).outputs[0]
        turned = rw.op("Transpose", split, at=at, perm=[0, 4, 1, 2, 3]).outputs[0]
        halves.append(rw.op("Reshape", turned, at=at, shape=[out, 2 * inner, height, 2]).outputs[0])
    return join(halves, at, rw)


# ---- the gradients of the weights, from those of the pairs' weights


def first_weight_gradient(paired: ir.Value, conv: Convolution, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[2·O, I, h, w + 1] → [O, I, h, w]: each tap's gradient from both of its places."""
    out, width = conv.channels[0], conv.kernel[1]
    parts = [
        rw.op("Slice", paired, at=at, starts=[o * out, o], ends=[(o + 1) * out, o + width], axes=[0, 3]).outputs[0]
        for o in (0, 1)
    ]
    return rw.op("Add", *parts, at=at).outputs[0]


def second_weight_gradient(paired: ir.Value, conv: Convolution, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[2·O, 2·I, h, 2] → [O, I, h, 3]: each tap's gradient from both of its places."""
    (out, inner), (height, width) = conv.channels, conv.kernel
    parts = []
    for o in (0, 1):
        half = channels_of(paired, o, out, at, rw, axis=0)
        split = rw.op("Reshape", half, at=at, shape=[out, 2, inner, height, 2]).outputs[0]
        turned = rw.op("Transpose", split, at=at, perm=[0, 2, 3, 4, 1]).outputs[0]
        taps = rw.op("Reshape", turned, at=at, shape=[out, inner, height, 4]).outputs[0]
        parts.append(rw.op("Slice", taps, at=at, starts=[o], ends=[o + width], axes=[3]).outputs[0])
    return rw.op("Add", *parts, at=at).outputs[0]


def halves_sum(value: ir.Value, count: int, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[2·C] or [1, 2·C, 1, 1] → the sum of the halves."""
    axis = 0 if value.shape is not None and len(value.shape) == 1 else 1
    return rw.op("Add", *(channels_of(value, half, count, at, rw, axis) for half in (0, 1)), at=at).outputs[0]


# ---- small steps


def widened(weight: ir.Value, sides: tuple[int, int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """The taps with zeros to their left and right."""
    return rw.op("Pad", weight, at=at, pads=[0, 0, 0, sides[0], 0, 0, 0, sides[1]]).outputs[0]


def join(parts: list[ir.Value], at: ir.Node, rw: Rewriter, axis: int = 0) -> ir.Value:
    """One after the other."""
    return rw.op("Concat", *parts, at=at, axis=axis).outputs[0]


def channels_of(value: ir.Value, half: int, count: int, at: ir.Node, rw: Rewriter, axis: int = 1) -> ir.Value:
    """The first or second `count` channels."""
    return rw.op("Slice", value, at=at, starts=[half * count], ends=[(half + 1) * count], axes=[axis]).outputs[0]


def twice(bias: ir.Value | None, at: ir.Node, rw: Rewriter) -> list[ir.Value]:
    """The operand after a weight: the bias of both columns of a pair, or none."""
    return [] if bias is None else [join([bias, bias], at, rw)]
