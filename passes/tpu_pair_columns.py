"""tpu-pair-columns: convolutions of few channels work on two columns at a time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from .dims import static_shape
from .dtypes import ALL_FLOATS
from .matching import only_reader
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in

_UNIT = 128
"""Rows and columns of a TPU's matrix unit, and channels that it multiplies at a time (facts of v2 to v5p)."""


class _Convolution(NamedTuple):
    """A Conv of stride 1, not dilated and not grouped, of images of static size [N, C, H, W]."""

    node: ir.Node
    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]
    """Top, left, bottom, right."""


@dataclasses.dataclass(frozen=True)
class TpuPairColumns:
    """A convolution of fewer than 128 channels reads and writes pairs of columns as twice as many channels.

    before:  x ─ Conv(3→64, 3×3) ─ Relu ─ Conv(64→64, 3×3) ─ Relu ─ MaxPool(2×2) ─ y
    after:   x ─ Conv(3→128, 3×4, stride 1×2) ─ Relu ─ Mul(mask) ─┬ Conv(128→128, 3×2, stride 2×1) ─┬ Max ─ …
                                                                  └ Conv(128→128, 3×2, stride 2×1) ─┘
             … ─ Relu ─ Max(channels 0…63, channels 64…127) ─ y

    A matrix unit of 128×128 is half empty with 64 channels. The first convolution writes columns 2j − 1 and 2j as the
    channels of one, for j from 0: the second then needs two taps instead of three, of which a quarter are zeros. Two
    more columns than there are stand for its padding, and the mask keeps them zero. Even and odd rows are computed by
    themselves where a pool follows, which is then an elementwise maximum; without one the pairs are turned back. The
    terms of every sum stay, among more zeros.
    """

    name: ClassVar[str] = "tpu-pair-columns"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Conv")
def pair_columns(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(Relu(Conv(x))) of few channels, and the Relu and pool behind, → on pairs of columns."""
    second = _convolution(node, rw)
    if second is None or not _is_narrow(second):
        return False
    activation = _made_for(second.source.producer(), node, rw, "Relu")
    between = activation.inputs[0] if activation is not None else second.source
    maker = between.producer() if between is not None else None
    first = _convolution(maker, rw) if maker is not None and _made_for(maker, activation or node, rw, "Conv") else None
    if first is None:
        return rw.reject("pair_columns", "what it reads is not written by a convolution for it alone")
    if second.kernel[1] != 3 or (second.pads[1], second.pads[3]) != (1, 1):
        return rw.reject("pair_columns", "its width is not 3 with a padding of 1")
    rows, columns = _size(second.source)
    if columns % 2:
        return rw.reject("pair_columns", "the number of columns is odd")
    pairs = _masked(_first(first, node, rw), activation is not None, columns, node, rw)
    _second(second, pairs, rows, node, rw)
    return True


# ---- the two convolutions


def _first(conv: _Convolution, at: ir.Node, rw: Rewriter) -> ir.Value:
    """The columns (−1, 0), (1, 2), … as channels [2·O] of W / 2 + 1 columns; the outermost two are not there."""
    top, left, bottom, right = conv.pads
    weight = _join([_widened(conv.weight, (o, 1 - o), at, rw) for o in (0, 1)], at, rw)
    pads = [top, left + 1, bottom, right + 1]
    return rw.op("Conv", conv.source, weight, *_twice(conv.bias, at, rw), at=at, pads=pads, strides=[1, 2]).outputs[0]


def _masked(value: ir.Value, is_activated: bool, columns: int, at: ir.Node, rw: Rewriter) -> ir.Value:
    if is_activated:
        value = rw.op("Relu", value, at=at).outputs[0]
    assert value.shape is not None and value.dtype is not None
    channels = value.shape[1]
    assert isinstance(channels, int)
    mask = np.ones((1, 2, channels // 2, 1, columns // 2 + 1), value.dtype.numpy())
    mask[:, 0, ..., 0] = mask[:, 1, ..., -1] = 0
    constant = rw.constant(mask.reshape(1, channels, 1, -1), "paired_columns_mask", at)
    return rw.op("Mul", value, constant, at=at).outputs[0]


def _second(conv: _Convolution, pairs: ir.Value, rows: int, at: ir.Node, rw: Rewriter) -> None:
    """Replace the convolution, and the Relu and pool behind it where they are its only readers."""
    shape = static_shape(conv.weight)
    assert shape is not None
    out, inner, height, _ = shape
    halves = []
    for o in (0, 1):  # the taps of column 2j + o among those of 2j − 1 … 2j + 2
        taps = _widened(conv.weight, (o, 1 - o), at, rw)
        split = rw.op("Reshape", taps, at=at, shape=[out, inner, height, 2, 2]).outputs[0]
        turned = rw.op("Transpose", split, at=at, perm=[0, 4, 1, 2, 3]).outputs[0]
        halves.append(rw.op("Reshape", turned, at=at, shape=[out, 2 * inner, height, 2]).outputs[0])
    weight, bias = _join(halves, at, rw), _twice(conv.bias, at, rw)
    top, _, bottom, _ = conv.pads
    relu = _followed_by(conv.node, "Relu", rw)
    pool = _followed_by(relu or conv.node, "MaxPool", rw)
    if pool is not None and top and _halves(pool, rows + top + bottom - height + 1, rw):
        pads = ([top, 0, max(bottom - 1, 0), 0], [top - 1, 0, bottom, 0])
        rows_of = [rw.op("Conv", pairs, weight, *bias, at=at, pads=each, strides=[2, 1]).outputs[0] for each in pads]
        value = rw.op("Max", *rows_of, at=at).outputs[0]
        if relu is not None:
            value = rw.op("Relu", value, at=at).outputs[0]
        sides = [
            rw.op("Slice", value, at=at, starts=[i * out], ends=[(i + 1) * out], axes=[1]).outputs[0] for i in (0, 1)
        ]
        rw.replace(pool, rw.op("Max", *sides, at=at).outputs[0])
        return
    value = rw.op("Conv", pairs, weight, *bias, at=at, pads=[top, 0, bottom, 0]).outputs[0]
    last = relu or conv.node
    if relu is not None:
        value = rw.op("Relu", value, at=at).outputs[0]
    rw.replace(last, _columns(value, out, at, rw))


def _columns(pairs: ir.Value, channels: int, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[N, 2·C, H, W / 2] → [N, C, H, W]."""
    shape = static_shape(pairs)
    assert shape is not None
    batch, _, height, width = shape
    split = rw.op("Reshape", pairs, at=at, shape=[batch, 2, channels, height, width]).outputs[0]
    turned = rw.op("Transpose", split, at=at, perm=[0, 2, 3, 4, 1]).outputs[0]
    return rw.op("Reshape", turned, at=at, shape=[batch, channels, height, 2 * width]).outputs[0]


# ---- weights


def _widened(weight: ir.Value, sides: tuple[int, int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """The taps with zeros to their left and right."""
    return rw.op("Pad", weight, at=at, pads=[0, 0, 0, sides[0], 0, 0, 0, sides[1]]).outputs[0]


def _join(parts: list[ir.Value], at: ir.Node, rw: Rewriter) -> ir.Value:
    return rw.op("Concat", *parts, at=at, axis=0).outputs[0]


def _twice(bias: ir.Value | None, at: ir.Node, rw: Rewriter) -> list[ir.Value]:
    return [] if bias is None else [_join([bias, bias], at, rw)]


# ---- what is looked for


def _convolution(node: ir.Node | None, rw: Rewriter) -> _Convolution | None:
    if node is None or node.op_type != "Conv" or not rw.is_standard(node) or (rw.opset(node) or 0) < 13:
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
    return _Convolution(node, source, weight, view.at(2), (shape[2], shape[3]), pads)


def _is_narrow(conv: _Convolution) -> bool:
    shape = static_shape(conv.weight)
    return shape is not None and min(shape[:2]) < _UNIT


def _made_for(node: ir.Node | None, reader: ir.Node, rw: Rewriter, op_type: str) -> ir.Node | None:
    """The node, if it is this operator and its result is needed by `reader` alone."""
    if node is None or node.op_type != op_type or not rw.is_standard(node):
        return None
    return node if only_reader(node.outputs[0]) is reader else None


def _followed_by(node: ir.Node, op_type: str, rw: Rewriter) -> ir.Node | None:
    """The only reader of the node's result, if it is this operator."""
    reader = only_reader(node.outputs[0])
    return reader if reader is not None and reader.op_type == op_type and rw.is_standard(reader) else None


def _halves(pool: ir.Node, rows: int, rw: Rewriter) -> bool:
    """Whether a MaxPool is of 2×2 windows beside each other over all of an even number of rows, indices unread."""
    view = rw.view(pool)
    plain = all(view.attr(name) in (None, (1, 1), (0, 0, 0, 0), 0) for name in ("dilations", "pads", "ceil_mode"))
    windows = view.attr("kernel_shape") == (2, 2) and view.attr("strides") == (2, 2)
    return windows and plain and view.attr("auto_pad") == "NOTSET" and rows % 2 == 0 and view.used_outputs() == [0]


def _size(value: ir.Value) -> tuple[int, int]:
    shape = static_shape(value)
    assert shape is not None
    return shape[2], shape[3]


RULES = rules_in(globals())
