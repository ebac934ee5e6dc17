"""Convolutions and pools of double, which ONNX Runtime computes in float only: shifted slices and MatMul."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onnx import TensorProto
from pfvm.runtime.ort_expand.node import END, Builder, Node, Rule

_FIRST_SLICE = 10  # the opset from which Slice takes steps


class _Window(NamedTuple):
    """A sliding window; one entry per spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]
    ends: list[int]

    @property
    def reach(self) -> list[int]:
        """Distance between the first and the last tap."""
        return [d * (k - 1) for d, k in zip(self.dilations, self.kernel)]


def _is_ours(node: Node, b: Builder) -> bool:
    return node.dtype(0) == TensorProto.DOUBLE and b.opset >= _FIRST_SLICE and node.rank(0) is not None


def _window(node: Node, kernel: list[int]) -> _Window | None:
    """The window with its padding; None where SAME padding depends on sizes that are not known."""
    ones = [1] * len(kernel)
    window = _Window(kernel, node.attr("strides", ones), node.attr("dilations", ones), [], [])
    mode = node.attr("auto_pad")
    if mode in ("NOTSET", "VALID"):
        pads = node.attr("pads", [0] * 2 * len(kernel)) if mode == "NOTSET" else [0] * 2 * len(kernel)
        return window._replace(begins=pads[: len(kernel)], ends=pads[len(kernel) :])
    sizes = (node.shape(0) or [])[2:]
    known = [size for size in sizes if size is not None]
    if len(known) != len(kernel):
        return None
    reach = window.reach
    totals = [max(((s - 1) // t) * t + r + 1 - s, 0) for s, t, r in zip(known, window.strides, reach)]
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves)]
    upper = mode == "SAME_UPPER"
    return window._replace(begins=halves if upper else rests, ends=rests if upper else halves)


def _taps(x: str, window: _Window, b: Builder) -> list[str]:
    """For each place in the window the values that it meets, [N, C, *out]; x is [N, C, *in]."""
    padded = b.pad(x, window.begins, window.ends)
    axes = range(2, 2 + len(window.kernel))
    taps = []
    for place in itertools.product(*(range(k) for k in window.kernel)):
        starts = [p * d for p, d in zip(place, window.dilations)]
        ends = [start - reach or END for start, reach in zip(starts, window.reach)]
        taps.append(b.slice(padded, list(axes), starts, ends, window.strides))
    return taps


def _conv(node: Node, b: Builder) -> list[str] | None:
    """Columns of all taps times the weights: [1, g, M/g, C/g·k] × [N, g, C/g·k, out] → [N, M, *out]."""
    shape = node.static_shape(1)
    if not _is_ours(node, b) or shape is None:
        return None
    window = _window(node, shape[2:])
    if window is None:
        return None
    return [_with_bias(node, _product(node.input(0), node.input(1), shape, node.attr("group"), window, b), b)]


def _product(x: str, w: str, shape: Sequence[int], group: int, window: _Window, b: Builder) -> str:
    """The convolution without bias; w has `shape` [M, C/g, *k]."""
    taps = _taps(x, window, b)
    columns = b.op("Concat", *(b.unsqueeze(tap, 2) for tap in taps), axis=2)
    depth = shape[1] * len(taps)
    columns = b.op("Reshape", columns, b.ints(0, group, depth, -1))
    weights = b.op("Reshape", w, b.ints(1, group, shape[0] // group, depth))
    sizes = b.op("Concat", b.dims(x, 0, 1), b.ints(shape[0]), b.dims(taps[0], 2), axis=0)
    return b.op("Reshape", b.op("MatMul", weights, columns), sizes)


def _with_bias(node: Node, value: str, b: Builder) -> str:
    if not node.has_input(2):
        return value
    spatial = (node.rank(0) or 0) - 2
    return b.op("Add", value, b.unsqueeze(node.input(2), *range(1, 1 + spatial)))


def _conv_transpose(node: Node, b: Builder) -> list[str] | None:
    """Zeros between the elements of x, then a convolution with the kernel turned round and its channels swapped."""
    shape = node.static_shape(1)
    if not _is_ours(node, b) or shape is None or node.attr("auto_pad") != "NOTSET" or node.has_attr("output_shape"):
        return None
    window = _window(node, shape[2:])
    assert window is not None  # NOTSET padding is always known
    group, count = node.attr("group"), len(window.kernel)
    extra = node.attr("output_padding", [0] * count)
    inner = window._replace(
        strides=[1] * count,
        begins=[r - p for r, p in zip(window.reach, window.begins)],
        ends=[r - p + e for r, p, e in zip(window.reach, window.ends, extra)],
    )
    turned = b.slice(node.input(1), range(2, 2 + count), [-1] * count, [-END] * count, [-1] * count)
    split = b.op("Reshape", turned, b.ints(group, shape[0] // group, shape[1], *shape[2:]))
    swapped = b.op("Transpose", split, perm=[0, 2, 1, *range(3, 3 + count)])
    forward = [group * shape[1], shape[0] // group, *shape[2:]]
    weights = b.op("Reshape", swapped, b.ints(*forward))
    spread = _spread(node.input(0), window.strides, b)
    return [_with_bias(node, _product(spread, weights, forward, group, inner, b), b)]


def _spread(x: str, strides: Sequence[int], b: Builder) -> str:
    """stride - 1 zeros between neighbours on each spatial axis."""
    for axis, stride in enumerate(strides, 2):
        if stride == 1:
            continue
        apart = b.unsqueeze(x, axis + 1)
        rank = len(strides) + 3
        zeros = [0] * rank
        zeros[axis + 1] = stride - 1
        apart = b.pad(apart, [0] * (rank - 2), zeros[2:])
        sizes = b.op("Concat", b.dims(x, 0, axis), b.ints(-1), b.dims(x, axis + 1), axis=0)
        if axis == len(strides) + 1:
            sizes = b.op("Concat", b.dims(x, 0, axis), b.ints(-1), axis=0)
        x = b.slice(b.op("Reshape", apart, sizes), [axis], [0], [1 - stride], [1])
    return x


def _average_pool(node: Node, b: Builder) -> list[str] | None:
    """The sum of the taps over how many of them count."""
    if not _is_ours(node, b) or node.attr("ceil_mode"):
        return None
    window = _window(node, node.attr("kernel_shape"))
    if window is None:
        return None
    total = _sum(_taps(node.input(0), window, b), b)
    if node.attr("count_include_pad") or not any((*window.begins, *window.ends)):
        places = 1
        for size in window.kernel:
            places *= size
        return [b.op("Div", total, b.scalar(places, TensorProto.DOUBLE))]
    one = b.scalar(1, TensorProto.DOUBLE)
    ones = b.op("Expand", one, b.op("Shape", node.input(0)))
    return [b.op("Div", total, _sum(_taps(ones, window, b), b))]


def _sum(values: Sequence[str], b: Builder) -> str:
    return b.op("Sum", *values)


def _global_pool(node: Node, b: Builder) -> list[str] | None:
    if not _is_ours(node, b):
        return None
    reduction = "ReduceMean" if node.op_type == "GlobalAveragePool" else "ReduceMax"
    return [b.reduce(reduction, node.input(0), range(2, node.rank(0) or 0))]


RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global_pool,
    ("", "GlobalMaxPool"): _global_pool,
}
