"""Convolutions of one, two and three dimensions, plain and transposed."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


def per_dimension(numbers: int | Sequence[int], rank: int) -> list[int]:
    """One number per spatial dimension; torch lets a single one stand for all."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return listed * rank if len(listed) == 1 else listed


@rule(aten.convolution.default)
def convolution(
    e: Emitter,
    node: Node,
    x: Node,
    weight: Node,
    bias: Arg,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ir.Value:
    rank = val(x).dim() - 2
    pads = per_dimension(padding, rank)
    inputs = [e.tensor(x), e.tensor(weight)]
    if bias is not None:
        inputs.append(e.tensor(bias))
    return e.op(
        "ConvTranspose" if transposed else "Conv",
        *inputs,
        kernel_shape=list(val(weight).shape[2:]),
        strides=per_dimension(stride, rank),
        pads=pads + pads,
        dilations=per_dimension(dilation, rank),
        group=groups,
        output_padding=per_dimension(output_padding, rank) if transposed and any(output_padding) else None,
    )
