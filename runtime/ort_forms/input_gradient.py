"""Transposed convolutions of a batch by weights that change: the gradients of a convolution's input."""

from __future__ import annotations

import math

import onnx_ir as ir
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.view import RUNTIME

from .columns import Operands, one_product_pays_off, operands, reshape, transpose

# ONNX Runtime multiplies image by image and adds up on one thread. Measured on 8 images, 3×3, two threads: 512 channels
# of 2×2 6.5 → 1.4 ms, 256 of 4×4 1.5 → 1.15, 64 ← 128 of 8×8 with stride 2 1.06 → 0.7, 128 of 8×8 1.1 → 1.2,
# 64 of 16×16 1.1 → 1.4; 256 images of 4×4 with 128 channels 19 → 13, of 8×8 with 64 18 → 21.
_FEWEST_CHANNELS = 16
_FIRST_COL2IM = 18


def input_gradient(node: ir.Node, rw: Rewriter) -> bool:
    """ConvTranspose(x [N, D, *in], w [D, M, *k]) of several small images → Gemm(x, w) of all, then Col2Im."""
    o = operands(node, rw)
    if o is None or o.bias is not None or not _pays_off(o) or (rw.opset(node) or 0) < _FIRST_COL2IM:
        return False
    if rw.view(node).attr("output_shape") not in (None, ()) or rw.view(node).attr("output_padding") is RUNTIME:
        return False
    if len(o.dilations) != 2 and any(d != 1 for d in o.dilations):
        return rw.reject("input_gradient", "ONNX Runtime's Col2Im leaves dilations out but for two axes")
    batch, depth, *sizes = o.x_shape
    places, width = math.prod(sizes), math.prod(o.w_shape[1:])
    if not _covers(o):
        return rw.reject("input_gradient", "the output padding is larger than a stride")
    rows = reshape(transpose(o.x, [0, *range(2, len(o.x_shape)), 1], node, rw), [batch * places, depth], node, rw)
    product = rw.op("Gemm", rows, reshape(o.w, [depth, width], node, rw), at=node).outputs[0]
    blocks = transpose(reshape(product, [batch, places, width], node, rw), [0, 2, 1], node, rw)
    image = rw.op(
        "Col2Im",
        blocks,
        at=node,
        image_shape=list(o.y_shape[2:]),
        block_shape=list(o.kernel),
        strides=list(o.strides),
        dilations=list(o.dilations),
        pads=[*o.begins, *o.ends],
    ).outputs[0]
    rw.replace(node, image)
    return True


def _pays_off(o: Operands) -> bool:
    pays_off = one_product_pays_off(o.x_shape[0], math.prod(o.x_shape[2:]), math.prod(o.w_shape))
    return pays_off and o.w_shape[1] >= _FEWEST_CHANNELS


def _covers(o: Operands) -> bool:
    """Whether Col2Im counts as many windows in the result as there are inputs."""
    windows = [
        (size + begin + end - d * (k - 1) - 1) // s + 1
        for size, begin, end, d, k, s in zip(o.y_shape[2:], o.begins, o.ends, o.dilations, o.kernel, o.strides)
    ]
    return windows == list(o.x_shape[2:])
