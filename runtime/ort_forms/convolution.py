"""Convolutions by weights that change from call to call: forward ones, and the gradients of such weights.

The gradient of a weight is a convolution too, with batch and channels swapped: a window as large as the image, and as
many outputs as the weight has places. Both are one product with the matrix of all windows, which is put together place
by place: of the window, or of the output, whichever are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from pfvm.passes.rewriter import Rewriter

from .columns import (
    Operands,
    columns,
    kernel_ranges,
    one_product_pays_off,
    operands,
    output_ranges,
    padded,
    reshape,
    taps,
    transpose,
)
from .readers import kept_outputs, swapping_reader

# ONNX Runtime multiplies image by image; with few outputs an image it reads all weights for each. Measured on 8 images,
# 3×3, two threads: 512 channels of 2×2 3.5 → 1.4 ms, 256 of 4×4 1.2 → 1.3, 128 of 8×8 1.5 → 1.3; 256 images of 4×4 with
# 128 channels 18 → 11, of 8×8 with 64 10 → 18. The matrix serves the weight's gradient as well.
_MOST_TAPS = 49
# Of gradients of weights its product is as wide as the weight has places. Measured likewise: 3×3 of 64 channels, images
# of 16×16, 5.7 → 1.7 ms; 512 of 2×2 6.4 → 2.2; 5×5 of 16, 32 images of 28×28 20 → 9; but 7×7 of 3 channels 2.5 → 3.7.
_MOST_OUTPUTS = 36
_FEWEST_CHANNELS = 16
# Elements of the matrix of all windows: above, one product for each output does without it (and is as fast there).
_LARGEST_MATRIX = 2_000_000
_LARGEST_MATRIX_OF_FORWARD = 8_000_000
# Weights this much larger than the image are not turned round.
_LARGEST_RATIO = 8


def convolution(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(x [B, D, *in], w [M, D, *k]) [→ Slice] [→ Transpose(1, 0, …)] → products of windows of x and w as matrices.

    A Slice that leaves out outputs at the ends (windows that the stride missed) is part of it: they are not computed.
    """
    o = operands(node, rw)
    if o is None:
        return False
    last, sizes = kept_outputs(node, list(o.y_shape[2:]), rw)
    swapped = swapping_reader(last, rw)
    if _by_outputs_pays_off(o, sizes):
        is_large = math.prod(sizes) * o.x_shape[0] * math.prod(o.w_shape[1:]) > _LARGEST_MATRIX
        result = (_output_by_output if is_large else _by_outputs)(o, sizes, node, rw)
    elif _by_window_pays_off(o, sizes):
        result = (_by_window if swapped is None else _by_window_swapped)(o, sizes, node, rw)
        if swapped is None:
            rw.replace(last, result)
            return True
    else:
        return False
    if swapped is not None:
        rw.replace(swapped, result)
    else:
        rw.replace(last, transpose(result, _swap(o), node, rw))
    return True


def _by_outputs_pays_off(o: Operands, sizes: Sequence[int]) -> bool:
    places = math.prod(sizes)
    if o.bias is not None or places >= math.prod(o.kernel) or places > _MOST_OUTPUTS:
        return False
    is_narrow = min(o.w_shape[0], o.x_shape[0]) < _FEWEST_CHANNELS
    return not is_narrow and math.prod(o.w_shape) <= _LARGEST_RATIO * math.prod(o.x_shape)


def _by_window_pays_off(o: Operands, sizes: Sequence[int]) -> bool:
    places, taps_ = math.prod(sizes), math.prod(o.kernel)
    if taps_ > _MOST_TAPS or o.w_shape[0] < _FEWEST_CHANNELS:
        return False
    is_large = taps_ * o.x_shape[1] * o.x_shape[0] * places > _LARGEST_MATRIX_OF_FORWARD
    return not is_large and one_product_pays_off(o.x_shape[0], places, math.prod(o.w_shape))


def _swap(o: Operands) -> list[int]:
    return [1, 0, *range(2, len(o.x_shape))]


def _by_window(o: Operands, sizes: Sequence[int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """[B, M, *sizes]: w times the matrix [D · window, outputs · B]. With the batch last, taps are long rows."""
    batch, channels = o.x_shape[0], o.w_shape[0]
    rank = len(sizes)
    image = transpose(o.x, [*range(1, rank + 2), 0], at, rw)
    product = _product(o, columns(o, image, 1, kernel_ranges(o, sizes), at, rw), at, rw)
    return transpose(reshape(product, [channels, *sizes, batch], at, rw), [rank + 1, *range(rank + 1)], at, rw)


def _by_window_swapped(o: Operands, sizes: Sequence[int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """[M, B, *sizes], as a large weight's gradient is wanted: w times the matrix [D · window, B · outputs]."""
    matrix = columns(o, transpose(o.x, _swap(o), at, rw), 2, kernel_ranges(o, sizes), at, rw)
    return reshape(_product(o, matrix, at, rw), [o.w_shape[0], o.x_shape[0], *sizes], at, rw)


def _product(o: Operands, matrix: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value:
    channels = o.w_shape[0]
    weights = reshape(o.w, [channels, math.prod(o.w_shape[1:])], at, rw)
    bias = [] if o.bias is None else [reshape(o.bias, [channels, 1], at, rw)]
    return rw.op("Gemm", weights, matrix, *bias, at=at).outputs[0]


def _by_outputs(o: Operands, sizes: Sequence[int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """[M, B, *sizes]: w times the matrix [B · outputs, window · D]; it is that of `_by_window`, where both are used."""
    last = [0, *range(2, len(o.x_shape)), 1]
    matrix = columns(o, transpose(o.x, last, at, rw), 1, output_ranges(o, sizes), at, rw)
    w = reshape(transpose(o.w, last, at, rw), [o.w_shape[0], math.prod(o.w_shape[1:])], at, rw)
    product = rw.op("Gemm", w, matrix, at=at, transB=1).outputs[0]
    return reshape(product, [o.w_shape[0], o.x_shape[0], *sizes], at, rw)


def _output_by_output(o: Operands, sizes: Sequence[int], at: ir.Node, rw: Rewriter) -> ir.Value:
    """[M, B, *sizes]: for each output w times its windows [D · window, B]; none is stored twice."""
    channels, rows, depth = o.w_shape[0], o.x_shape[0], math.prod(o.w_shape[1:])
    last = [*range(1, len(o.x_shape)), 0]
    windows = transpose(padded(o.x, o, 2, at, rw), last, at, rw)
    w = reshape(o.w, [channels, depth], at, rw)
    products = [
        reshape(rw.op("Gemm", w, reshape(tap, [depth, rows], at, rw), at=at).outputs[0], [channels, rows, 1], at, rw)
        for tap in taps(windows, 1, output_ranges(o, sizes), at, rw)
    ]
    joined = products[0] if len(products) == 1 else rw.op("Concat", *products, at=at, axis=2).outputs[0]
    return reshape(joined, [channels, rows, *sizes], at, rw)
