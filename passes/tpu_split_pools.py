"""tpu-split-pools: in training, a convolution before a pool computes each position of the pool's windows by itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from . import column_pairs as pairs
from .column_pairs import Convolution, convolution
from .convolution_gradients import SWAP, Gradients, gradients, pool_gradient, relu_gradient
from .dims import static_shape
from .matching import only_reader
from .rewriter import SEALED_DOMAIN, Rewriter
from .rules import apply_rules, rule, rules_in

Values = list[ir.Value]


@dataclasses.dataclass(frozen=True)
class TpuSplitPools:
    """Forward and backward through Conv, Relu and MaxPool(2×2) as elementwise steps between convolutions of stride 2.

    before:  x ─ Conv ─ Relu ─ MaxPool ─ p        dp ─ ScatterElements ─ ReluGrad ─┬ ConvTranspose ─ dx
                                  └ indices ──────────────────┘                    ├ Conv(x, ·) ─ dw
                                                                                   └ ReduceSum ─ db
    after:   x ─┬ Conv(stride 2) ─┬ Max ─ Max ─ Relu ─ p      dp ─ ReluGrad(p, ·) ─┬ Where ─┬ ConvTranspose ─ Add ─ dx
                ├ Conv(stride 2) ─┤                                                ├ Where ─┤ (stride 2, four times)
                ├ Conv(stride 2) ─┤                                                ├ Where ─┤
                └ Conv(stride 2) ─┴ Greater (three) ─ which it was ───── Where     └ Where ─┴ Conv(x, ·) ─ Add ─ dw

    XLA's TPU compiler has no cheap way to put gradients back in their places, and states no cycles for the one it has.
    Where two convolutions of few channels follow each other they work on pairs of columns, as in tpu-pair-columns, and
    so do their gradients: rows are split then, and columns are halves of the channels. Of equal maxima the first in the
    window has the gradient, as before. Sums have the same terms in another order.
    """

    name: ClassVar[str] = "tpu-split-pools"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


class _Activated(NamedTuple):
    """Conv → Relu (or not), whose result is read by what is known alone, and the gradient of the Conv's result.

    off: the gradient of the Relu, at the place of which `gradient` is there. readers: of the gradient.
    """

    conv: Convolution
    relu: ir.Node | None
    off: ir.Node | None
    gradient: ir.Value
    readers: Gradients

    @property
    def result(self) -> ir.Value:
        """What the pool, or the next convolution, reads."""
        return (self.relu or self.conv.node).outputs[0]


class _Pooled(NamedTuple):
    """A pool behind an activated convolution, and the gradient of what it gives: [N, C, places]."""

    before: _Activated
    pool: ir.Node
    updates: ir.Value


class _Phase(NamedTuple):
    """One of the convolutions that a convolution is split into."""

    pads: list[int]
    strides: list[int]


# ---- the rules


@rule("Conv")
def split_pairs(node: ir.Node, rw: Rewriter) -> bool:
    """Conv → Relu → Conv → Relu → MaxPool of few channels, and their gradients → on pairs of columns."""
    pooled = _pooled(node, rw, "split_pairs")
    if pooled is None or not pooled.before.conv.is_narrow:
        return False
    first, second = _written_for(pooled.before, rw), pooled.before
    if first is None:
        return rw.reject("split_pairs", "what it reads is not written by a convolution for it and its gradients alone")
    conv = second.conv
    if conv.kernel[1] != 3 or (conv.pads[1], conv.pads[3]) != (1, 1) or conv.size[1] % 2:
        return rw.reject("split_pairs", "its width is not 3 with a padding of 1, or the number of columns is odd")
    first_weight = pairs.first_weight(first.conv.weight, node, rw)
    source = pairs.write_pairs(first.conv, first_weight, node, rw)
    mask = pairs.pairs_mask(source, conv.size[1], node, rw)
    if first.relu is not None:
        source = rw.op("Relu", source, at=node).outputs[0]
    source = rw.op("Mul", source, mask, at=node).outputs[0]

    weight, bias = pairs.second_weight(conv.weight, node, rw), pairs.twice(conv.bias, node, rw)
    top, _, bottom, _ = conv.pads
    phases = [_Phase([top - row, 0, bottom - 1 + row, 0], [2, 1]) for row in (0, 1)]
    rows, at = _convolved(phases, source, weight, bias, node, rw), _place(second)
    maximum, gradient, parts = _through_pairs_pool(rows, pooled, rw)
    of_source, of_weight = _gradients(phases, source, weight, parts, second.readers, at, rw)
    if of_weight is not None:
        of_weight = pairs.second_weight_gradient(of_weight, conv, at, rw)
    new = _pairs_of(second.readers, None, of_weight, _bias_gradient(gradient, second.readers, at, rw))

    assert of_source is not None  # `_written_for` has seen its reader
    at = _place(first)
    gradient = _masked(of_source, mask, at, rw) if first.off is None else _off(first.off, source, of_source, rw)
    phases = [_Phase(pairs.first_pads(first.conv), [1, 2])]
    of_source, of_weight = _gradients(phases, first.conv.source, first_weight, [gradient], first.readers, at, rw)
    if of_weight is not None:
        of_weight = pairs.first_weight_gradient(of_weight, first.conv, at, rw)
    of_bias = _bias_gradient(gradient, first.readers, at, rw)
    if of_bias is not None:
        of_bias = pairs.halves_sum(of_bias, first.conv.channels[0], at, rw)
    new += _pairs_of(first.readers, of_source, of_weight, of_bias)
    _replace([*new, (pooled.pool, maximum)], rw)
    return True


@rule("Conv")
def split_pool(node: ir.Node, rw: Rewriter) -> bool:
    """Conv → Relu → MaxPool and their gradients → four convolutions of stride 2, and elementwise steps."""
    pooled = _pooled(node, rw, "split_pool")
    if pooled is None:
        return False
    before, conv = pooled.before, pooled.before.conv
    top, left, bottom, right = conv.pads
    phases = [_Phase([top - i, left - j, bottom - 1 + i, right - 1 + j], [2, 2]) for i in (0, 1) for j in (0, 1)]
    bias, at = [] if conv.bias is None else [conv.bias], _place(before)
    windows = _convolved(phases, conv.source, conv.weight, bias, node, rw)
    maximum, gradient, parts = _through_pool(windows, pooled, rw)
    of_source, of_weight = _gradients(phases, conv.source, conv.weight, parts, before.readers, at, rw)
    of_bias = _bias_gradient(gradient, before.readers, at, rw)
    _replace([*_pairs_of(before.readers, of_source, of_weight, of_bias), (pooled.pool, maximum)], rw)
    return True


# ---- the steps


def _convolved(
    phases: Sequence[_Phase], source: ir.Value, weight: ir.Value, bias: Values, at: ir.Node, rw: Rewriter
) -> Values:
    return [rw.op("Conv", source, weight, *bias, at=at, **phase._asdict()).outputs[0] for phase in phases]


def _through_pool(windows: Values, pooled: _Pooled, rw: Rewriter) -> tuple[ir.Value, ir.Value, Values]:
    """From the four positions of the windows, row by row: the maximum, its gradient, and that of each position."""
    node, at = pooled.before.conv.node, _place(pooled.before)
    rows = [rw.op("Max", *windows[i : i + 2], at=node).outputs[0] for i in (0, 2)]
    maximum = _activated(rw.op("Max", *rows, at=node).outputs[0], pooled, rw)
    is_second = [_is_greater(b, a, node, rw) for a, b in (windows[:2], windows[2:], rows)]
    gradient = _gradient_behind(maximum, pooled, rw)
    by_row = _split(gradient, is_second[2], at, rw)
    return maximum, gradient, [each for of, second in zip(by_row, is_second) for each in _split(of, second, at, rw)]


def _through_pairs_pool(rows: Values, pooled: _Pooled, rw: Rewriter) -> tuple[ir.Value, ir.Value, Values]:
    """The same from both rows of the windows, whose columns are halves of the channels; parts are those of the rows.

    Rows first, on full channels: half as much to do. Where both columns' maxima are equal the left one is the first of
    the window, unless it is from the second row and the right one from the first.
    """
    node, at, count = pooled.before.conv.node, _place(pooled.before), pooled.before.conv.channels[0]
    higher = rw.op("Max", *rows, at=node).outputs[0]
    is_lower_row = _is_greater(rows[1], rows[0], node, rw)
    left, right = (pairs.channels_of(higher, half, count, node, rw) for half in (0, 1))
    left_low, right_low = (pairs.channels_of(is_lower_row, half, count, node, rw) for half in (0, 1))
    maximum = _activated(rw.op("Max", left, right, at=node).outputs[0], pooled, rw)
    right_up = rw.op("Not", right_low, at=node).outputs[0]
    is_before = rw.op("And", left_low, right_up, at=node).outputs[0]
    is_equal = rw.op("Equal", left, right, at=node).outputs[0]
    is_first = rw.op("And", is_equal, is_before, at=node).outputs[0]
    is_right = rw.op("Or", _is_greater(right, left, node, rw), is_first, at=node).outputs[0]
    gradient = _gradient_behind(maximum, pooled, rw)
    columns = pairs.join(_split(gradient, is_right, at, rw), at, rw, axis=1)
    return maximum, gradient, _split(columns, is_lower_row, at, rw)


def _activated(maximum: ir.Value, pooled: _Pooled, rw: Rewriter) -> ir.Value:
    """Relu of the maximum, which is the maximum of Relu."""
    return rw.op("Relu", maximum, at=pooled.before.conv.node).outputs[0] if pooled.before.relu is not None else maximum


def _is_greater(a: ir.Value, b: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """Comparing, not looking for what equals the maximum: that a compiler may hold in another precision."""
    return rw.op("Greater", a, b, at=at).outputs[0]


def _gradient_behind(maximum: ir.Value, pooled: _Pooled, rw: Rewriter) -> ir.Value:
    """The gradient of the maximum before its Relu: that of the position that it comes from."""
    off = pooled.before.off
    gradient = _in_shape(pooled.updates, maximum, _place(pooled.before), rw)
    return gradient if off is None else _off(off, maximum, gradient, rw)


def _split(gradient: ir.Value, is_second: ir.Value, at: ir.Node, rw: Rewriter) -> Values:
    """The gradients of the first and of the second of two: one of them is zero."""
    assert gradient.dtype is not None
    zero = rw.constant(np.zeros((), gradient.dtype.numpy()), "zero", at)
    parts = ((zero, gradient), (gradient, zero))
    return [rw.op("Where", is_second, *each, at=at).outputs[0] for each in parts]


def _gradients(
    phases: Sequence[_Phase],
    source: ir.Value,
    weight: ir.Value,
    parts: Values,
    readers: Gradients,
    at: ir.Node,
    rw: Rewriter,
) -> tuple[ir.Value | None, ir.Value | None]:
    """Of what the phases read and of their weight, from the gradient of each one's result; None: not asked for."""
    of_source = of_weight = None
    if readers.source is not None:
        operands = [(part, weight, phase._asdict()) for part, phase in zip(parts, phases)]
        of_source = _sum([rw.op("ConvTranspose", x, w, at=at, **a).outputs[0] for x, w, a in operands], at, rw)
    if readers.weight is not None:
        images = rw.op("Transpose", source, at=at, perm=SWAP).outputs[0]
        products = []
        for part, (pads, strides) in zip(parts, phases):
            turned = rw.op("Transpose", part, at=at, perm=SWAP).outputs[0]
            products.append(rw.op("Conv", images, turned, at=at, pads=pads, dilations=strides).outputs[0])
        of_weight = rw.op("Transpose", _sum(products, at, rw), at=at, perm=SWAP).outputs[0]
    return of_source, of_weight


def _bias_gradient(gradient: ir.Value, readers: Gradients, at: ir.Node, rw: Rewriter) -> ir.Value | None:
    if readers.bias is None:
        return None
    keepdims = rw.view(readers.bias).attr("keepdims")
    return rw.op("ReduceSum", gradient, at=at, axes=[0, 2, 3], keepdims=keepdims).outputs[0]


def _off(off: ir.Node, result: ir.Value, gradient: ir.Value, rw: Rewriter) -> ir.Value:
    """The gradient of a Relu, as `off` is one, of another result."""
    value = rw.op(off.op_type, result, gradient, at=off, domain=SEALED_DOMAIN, overload=off.overload).outputs[0]
    value.type, value.shape = result.type, result.shape
    return value


def _masked(value: ir.Value, mask: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    return rw.op("Mul", value, mask, at=at).outputs[0]


def _in_shape(value: ir.Value, wanted: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[N, C, places] → [N, C, rows, columns], as it was before it was flattened where it was."""
    shape, flattened = static_shape(wanted), rw.producer(value, "Reshape")
    source = flattened.inputs[0] if flattened is not None else None
    if source is not None and static_shape(source) == shape:
        return source
    return rw.op("Reshape", value, at=at, shape=shape).outputs[0]


def _sum(values: Values, at: ir.Node, rw: Rewriter) -> ir.Value:
    return functools.reduce(lambda a, b: rw.op("Add", a, b, at=at).outputs[0], values)


def _pairs_of(
    readers: Gradients, source: ir.Value | None, weight: ir.Value | None, bias: ir.Value | None
) -> list[tuple[ir.Node, ir.Value]]:
    """The nodes of the gradients that are asked for, and what stands in for them."""
    found = ((readers.source, source), (readers.weight, weight), (readers.bias, bias))
    return [(node, value) for node, value in found if node is not None and value is not None]


def _replace(new: Sequence[tuple[ir.Node, ir.Value]], rw: Rewriter) -> None:
    """The pool is the last: its indices are read until the gradients are gone."""
    for node, value in new:
        rw.replace(node, value)


# ---- what is looked for


def _pooled(node: ir.Node, rw: Rewriter, rule: str) -> _Pooled | None:
    """The convolution with a pool behind it whose gradient is taken; None where anything else reads what is split."""
    conv = convolution(node, rw)
    if conv is None or min(conv.pads) < 1 or conv.result_size[1] % 2:
        return None
    relu = _relu_behind(node, rw)
    result = (relu or node).outputs[0]
    pools = [reader for reader, _ in result.uses() if reader.op_type == "MaxPool" and rw.is_standard(reader)]
    if not pools and relu is None and any(reader.op_type == "Relu" for reader, _ in node.outputs[0].uses()):
        rw.reject(rule, "its result is read by more than its Relu")
    if len(pools) != 1 or pools[0].graph is not node.graph or not pairs.halves_all(pools[0], conv.result_size[0], rw):
        return None
    selection = pool_gradient(pools[0], rw)
    off = relu_gradient(result, rw) if relu is not None else None
    if selection is None or (relu is not None and off is None):
        rw.reject(rule, "the gradients of the pool and of its Relu are not found, or what they read is read elsewhere")
        return None
    if not _is_read_by(result, pools[0], off) or (off is not None and not _passes_on(off, selection.result)):
        rw.reject(rule, "what the pool reads, or its gradient, is read elsewhere")
        return None
    gradient = selection.result if off is None else off.outputs[0]
    readers = gradients(conv, gradient, rw)
    if readers is None:
        rw.reject(rule, "the gradient of its result is read by more than the gradients of its operands")
        return None
    return _Pooled(_Activated(conv, relu, off, gradient, readers), pools[0], selection.updates)


def _written_for(second: _Activated, rw: Rewriter) -> _Activated | None:
    """The convolution whose result, after Relu or not, only `second` and the gradients of the two read."""
    source, of_source = second.conv.source, second.readers.source
    maker = source.producer()
    relu = maker if maker is not None and maker.op_type == "Relu" and rw.is_standard(maker) else None
    value = maker.inputs[0] if relu is not None and maker is not None else source
    conv = convolution(value.producer(), rw) if value is not None else None
    if conv is None or of_source is None or conv.node.graph is not second.conv.node.graph:
        return None
    off = relu_gradient(source, rw) if relu is not None else None
    known = [second.conv.node, off, second.readers.swapped]
    if not _is_read_by(source, *known) or (relu is not None and only_reader(conv.node.outputs[0]) is not relu):
        return None
    if relu is not None and (off is None or not _passes_on(off, of_source.outputs[0])):
        return None
    gradient = of_source.outputs[0] if off is None else off.outputs[0]
    readers = gradients(conv, gradient, rw)
    return None if readers is None else _Activated(conv, relu, off, gradient, readers)


def _relu_behind(node: ir.Node, rw: Rewriter) -> ir.Node | None:
    reader = only_reader(node.outputs[0])
    return reader if reader is not None and reader.op_type == "Relu" and rw.is_standard(reader) else None


def _is_read_by(value: ir.Value, *nodes: ir.Node | None) -> bool:
    """Whether these nodes are all that read the value, each once, in its own graph."""
    readers = [node for node, _ in value.uses()]
    producer = value.producer()
    local = producer is not None and all(node.graph is producer.graph for node in readers)
    return local and not value.is_graph_output() and {*readers} <= {*nodes} and len(readers) == len({*readers})


def _passes_on(off: ir.Node, gradient: ir.Value) -> bool:
    """Whether the gradient of a Relu is that of `gradient`, which nothing else reads."""
    return off.inputs[1] is gradient and only_reader(gradient) is off


def _place(layer: _Activated) -> ir.Node:
    """Where the gradient of the layer's result is there."""
    node = layer.off if layer.off is not None else layer.gradient.producer()
    assert node is not None
    return node


RULES = rules_in(globals())
