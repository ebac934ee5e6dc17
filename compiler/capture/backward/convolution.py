"""The gradients of a convolution are convolutions.

Of the input: the transposed convolution of the output's gradient. Of the weight:

    dW[o, i, k] = Σ_{n, p} x[n, i, p·stride + k·dilation - padding] · dy[n, o, p]

which is a convolution with the batch in the place of the channels, stride and dilation exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def convolution_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(d input, d weight, d bias), None where `mask` says so."""
    rank = x.dim() - 2
    stride, padding, dilation = (list(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation))
    none = [0] * rank
    dx = dw = db = None
    if mask[0] and transposed:
        dx = aten.convolution(dy, weight, None, stride, padding, dilation, False, none, groups)
    elif mask[0]:
        missing = _rows_missed(x, dy, weight, stride, padding, dilation)
        dx = aten.convolution(dy, weight, None, stride, padding, dilation, True, missing, groups)
    if mask[1]:
        wide, narrow = (dy, x) if transposed else (x, dy)
        dw = _weight_gradient(wide, narrow, list(weight.shape[2:]), stride, padding, dilation, groups)
    if mask[2]:
        db = dy.sum([0, *range(2, 2 + rank)])
    return dx, dw, db


def _rows_missed(
    x: Tensor, dy: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Rows at the end of each dimension that no window reached: the transposed convolution's output padding."""
    return [
        x.shape[2 + i] - ((dy.shape[2 + i] - 1) * s - 2 * p + d * (weight.shape[2 + i] - 1) + 1)
        for i, (s, p, d) in enumerate(zip(stride, padding, dilation))
    ]


def _weight_gradient(
    x: Tensor,
    dy: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """[out, in / groups, *kernel]: each group's channels are the batch, and the batch is each group's channels."""
    n, rank = x.shape[0], x.dim() - 2
    inner, outer = x.shape[1] // groups, dy.shape[1] // groups
    sizes, places = list(x.shape[2:]), list(range(3, 3 + rank))
    if groups == 1:
        images, filters = x.transpose(0, 1), dy.transpose(0, 1)
    else:
        images = x.reshape([n, groups, inner, *sizes]).permute([2, 1, 0, *places]).reshape([inner, groups * n, *sizes])
        by_group = dy.reshape([n, groups, outer, *dy.shape[2:]]).permute([1, 2, 0, *places])
        filters = by_group.reshape([groups * outer, n, *dy.shape[2:]])
    result = aten.convolution(images, filters, None, dilation, padding, stride, False, [0] * rank, groups)
    for i, size in enumerate(kernel):
        if result.shape[2 + i] != size:  # windows that the stride left out
            result = result.narrow(2 + i, 0, size)
    return result.transpose(0, 1)


DECOMPOSITIONS = {aten.convolution_backward.default: convolution_backward}
