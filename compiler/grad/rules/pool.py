"""Pools over sliding windows."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, NotCovered, gradient_of

V = ir.Value


@gradient_of("MaxPool")
def _max_pool(b: Builder, n: ForwardNode, dy: V) -> V:
    """The forward node also says where each maximum was; the gradient goes back there."""
    if n.attr("storage_order", 0):
        raise NotCovered
    where = _indices(b, n.node)
    flat = b.fill(b.op("Reshape", b.op("Size", n.x()), b.ints(1)), 0, dy)
    one = b.ints(-1)
    spread = b.op("ScatterElements", flat, b.op("Reshape", where, one), b.op("Reshape", dy, one), reduction="add")
    return b.reshape(spread, n.x())


def _indices(b: Builder, node: ir.Node) -> V:
    if len(node.outputs) < 2:
        node.resize_outputs(2)
    where = node.outputs[1]
    if not where.name:
        where.name = b.unique(f"{node.outputs[0].name}_indices")
    where.type, where.shape = ir.TensorType(ir.DataType.INT64), node.outputs[0].shape
    return where


@gradient_of("AveragePool")
def _average_pool(b: Builder, n: ForwardNode, dy: V) -> V:
    """Every window gives each of its elements an equal part: a transposed convolution with ones, channel by channel."""
    x, kernel = n.x(), n.attr("kernel_shape")
    rank = len(kernel)
    strides, dilations = n.attr("strides", (1,) * rank), n.attr("dilations", (1,) * rank)
    pads = n.attr("pads", (0,) * 2 * rank)
    sizes, out = list(x.shape or ())[2:], list(dy.shape or ())[2:]
    if n.attr("ceil_mode", 0) or n.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or not sizes:
        raise NotCovered
    if not all(isinstance(d, int) for d in (*sizes, *out)):
        raise NotCovered
    share = b.div(dy, math.prod(kernel))
    if any(pads) and not n.attr("count_include_pad", 0):
        given: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides), "pads": list(pads)}
        ones = b.fill(b.ints(1, 1, *sizes), 1, dy)  # type: ignore[arg-type]
        if any(d != 1 for d in dilations):
            given["dilations"] = list(dilations)
        share = b.div(share, b.op("AveragePool", ones, **given, count_include_pad=1))
    planes = b.op("Reshape", share, b.ints(-1, 1, *out))  # type: ignore[arg-type]
    weight = b.fill(b.ints(1, 1, *kernel), 1, dy)
    rest = [
        int(size) + p + q - ((int(o) - 1) * s + (k - 1) * d + 1)
        for size, o, p, q, k, s, d in zip(sizes, out, pads[:rank], pads[rank:], kernel, strides, dilations)
    ]
    if any(r >= s for r, s in zip(rest, strides)):
        raise NotCovered
    spread = b.op(
        "ConvTranspose", planes, weight, strides=list(strides), dilations=list(dilations), pads=list(pads),
        output_padding=rest,
    )  # fmt: skip
    return b.reshape(spread, x)
