"""tpu-pair-columns: convolutions of few channels work on two columns at a time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from . import column_pairs as pairs
from .column_pairs import Convolution, convolution
from .dims import static_shape
from .matching import only_reader
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


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
    second = convolution(node, rw)
    if second is None or not second.is_narrow:
        return False
    activation = _made_for(second.source.producer(), node, rw, "Relu")
    between = activation.inputs[0] if activation is not None else second.source
    maker = between.producer() if between is not None else None
    first = convolution(maker, rw) if maker is not None and _made_for(maker, activation or node, rw, "Conv") else None
    if first is None:
        return rw.reject("pair_columns", "what it reads is not written by a convolution for it alone")
    if second.kernel[1] != 3 or (second.pads[1], second.pads[3]) != (1, 1):
        return rw.reject("pair_columns", "its width is not 3 with a padding of 1")
    columns = second.size[1]
    if columns % 2:
        return rw.reject("pair_columns", "the number of columns is odd")
    source = pairs.write_pairs(first, pairs.first_weight(first.weight, node, rw), node, rw)
    if activation is not None:
        source = rw.op("Relu", source, at=node).outputs[0]
    source = rw.op("Mul", source, pairs.pairs_mask(source, columns, node, rw), at=node).outputs[0]
    _second(second, source, node, rw)
    return True


def _second(conv: Convolution, source: ir.Value, at: ir.Node, rw: Rewriter) -> None:
    """Replace the convolution, and the Relu and pool behind it where they are its only readers."""
    weight, bias = pairs.second_weight(conv.weight, at, rw), pairs.twice(conv.bias, at, rw)
    out, (top, _, bottom, _) = conv.channels[0], conv.pads
    relu = _followed_by(conv.node, "Relu", rw)
    pool = _followed_by(relu or conv.node, "MaxPool", rw)
    halved = (
        pool is not None and pairs.halves_all(pool, conv.result_size[0], rw) and rw.view(pool).used_outputs() == [0]
    )
    if pool is not None and top and halved:
        pads = ([top, 0, max(bottom - 1, 0), 0], [top - 1, 0, bottom, 0])
        rows = [rw.op("Conv", source, weight, *bias, at=at, pads=each, strides=[2, 1]).outputs[0] for each in pads]
        value = rw.op("Max", *rows, at=at).outputs[0]
        if relu is not None:
            value = rw.op("Relu", value, at=at).outputs[0]
        sides = [pairs.channels_of(value, half, out, at, rw) for half in (0, 1)]
        rw.replace(pool, rw.op("Max", *sides, at=at).outputs[0])
        return
    value = rw.op("Conv", source, weight, *bias, at=at, pads=[top, 0, bottom, 0]).outputs[0]
    last = relu or conv.node
    if relu is not None:
        value = rw.op("Relu", value, at=at).outputs[0]
    rw.replace(last, _columns(value, out, at, rw))


def _columns(source: ir.Value, channels: int, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[N, 2·C, H, W / 2] → [N, C, H, W]."""
    shape = static_shape(source)
    assert shape is not None
    batch, _, height, width = shape
    split = rw.op("Reshape", source, at=at, shape=[batch, 2, channels, height, width]).outputs[0]
    turned = rw.op("Transpose", split, at=at, perm=[0, 2, 3, 4, 1]).outputs[0]
    return rw.op("Reshape", turned, at=at, shape=[batch, channels, height, 2 * width]).outputs[0]


# ---- what is looked for


def _made_for(node: ir.Node | None, reader: ir.Node, rw: Rewriter, op_type: str) -> ir.Node | None:
    """The node, if it is this operator and its result is needed by `reader` alone."""
    if node is None or node.op_type != op_type or not rw.is_standard(node):
        return None
    return node if only_reader(node.outputs[0]) is reader else None


def _followed_by(node: ir.Node, op_type: str, rw: Rewriter) -> ir.Node | None:
    """The only reader of the node's result, if it is this operator."""
    reader = only_reader(node.outputs[0])
    return reader if reader is not None and reader.op_type == op_type and rw.is_standard(reader) else None


RULES = rules_in(globals())
