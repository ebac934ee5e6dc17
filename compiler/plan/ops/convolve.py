"""Convolutions and pools where their operands lie: windows over axes that are whole in the addresses of each cell.

A convolution is a product whose contracted axis is the channels, once per tap: each matrix unit makes the partial sums
of the channels that it has, and the sum over their level is a reduction. A pool, or a convolution of each channel by
itself, takes nothing from other cells: a window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from . import contract, gathered
from .table import PadNeed, Rule, dims, rank

CHANNELS = 1
"""The axis of images, data and result, that has their channels. Axis 0 has the batch, the others are spatial."""


class Kernel(NamedTuple):
    """Axes of a convolution's weight. contracted: met by the data's channels; column: the result's channels."""

    contracted: int
    column: int


def kernel(node: ir.Node) -> Kernel:
    """The axes of a Conv's or a ConvTranspose's weight."""
    return Kernel(0, 1) if node.op_type == "ConvTranspose" else Kernel(1, 0)


def taps(node: ir.Node) -> int:
    """Weights per pair of channels."""
    return math.prod(dims(node.inputs[1])[2:])


def spatial(value: ir.Value | None) -> tuple[int, ...]:
    """The axes of an image that windows run over."""
    return tuple(range(2, rank(value)))


def is_convolution(node: ir.Node) -> bool:
    """Is it a Conv or a ConvTranspose, in groups or not?"""
    return not node.domain and node.op_type in ("Conv", "ConvTranspose")


def local_kind(node: ir.Node) -> str | None:
    """How a node runs where its operands lie if images are whole in each cell; None: it has to gather them."""
    images = [dims(node.inputs[0]) if node.inputs else (), *(dims(out) for out in node.outputs)]
    if node.domain or any(len(shape) < 3 or 0 in shape for shape in images):
        return None
    if node.op_type in ("MaxPool", "AveragePool", "LpPool"):
        return "window"
    if not is_convolution(node):
        return None
    groups = node.attributes.get_int("group", 1)
    if groups == 1:
        return "convolve"
    alone = groups == images[0][CHANNELS] == images[1][CHANNELS]
    return "window" if alone and node.op_type == "Conv" else None


def _needs(node: ir.Node) -> tuple[PadNeed | None, ...]:
    needs = [PadNeed("Zero", (CHANNELS,)), PadNeed("Zero", (kernel(node).contracted,))]
    return (*needs, *(None,) * (len(node.inputs) - 2))


def _flops(node: ir.Node) -> int:
    return (contract.RULES | gathered.RULES)["", node.op_type].flops(node)


def _reads_dram(node: ir.Node) -> tuple[int, ...]:
    return contract.reads_dram(node) if len(node.inputs) > 1 else ()


MARKED = {
    "convolve": Rule("convolve", _flops, _needs, reads_dram=_reads_dram),
    "window": Rule("window", _flops, reads_dram=_reads_dram),
}
