"""Operations of the convolutions and products in an HLO module, 2 a multiply-add, of what really meets data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from .hlo import ARRAY, Instruction, Module

Flops = Counter[str]  # by the XLA type of the first operand


def product_flops(module: Module, computation: str, each: Instruction) -> Flops:
    """What one instruction computes, the products inside a fusion included. Empty for everything else."""
    if each.opcode == "fusion" and (called := each.called("calls")):
        total: Flops = Counter()
        for inner in module.computations[called].values():
            total.update(product_flops(module, called, inner))
        return total
    if each.opcode not in ("convolution", "dot"):
        return Counter()
    names = module.computations[computation]
    left, right = (_array(names[name].type) for name in each.reads[:2])
    operations = _convolution(each, left, right) if each.opcode == "convolution" else _dot(each, left)
    return Counter({left["dtype"]: operations})


def _array(type_text: str) -> re.Match[str]:
    match = ARRAY.match(type_text)
    assert match is not None, type_text
    return match


def _dims(array: re.Match[str]) -> list[int]:
    return [int(dim) for dim in array["dims"].split(",") if dim]


def _dot(each: Instruction, left: re.Match[str]) -> int:
    contracted = [int(axis) for axis in re.findall(r"\d+", each.attributes.get("lhs_contracting_dims", ""))]
    sizes = _dims(left)
    return 2 * math.prod(_dims(_array(each.type))) * math.prod(sizes[axis] for axis in contracted)


def _convolution(each: Instruction, left: re.Match[str], right: re.Match[str]) -> int:
    """As XLA's own HloCostAnalysis counts it: padding and the holes of a dilation are no operations."""
    inputs, kernels, outputs = re.fullmatch(r"(\w+)_(\w+)->(\w+)", each.attributes["dim_labels"]).groups()  # type: ignore[union-attr]
    data, kernel, result = _dims(left), _dims(right), _dims(_array(each.type))
    window = _window(each.attributes.get("window", ""), sum(label.isdigit() for label in outputs))
    groups = int(each.attributes.get("feature_group_count", 1))
    batch_groups = int(each.attributes.get("batch_group_count", 1))
    valid = 1
    for axis, row in enumerate(window):
        label = str(axis)
        sizes = (data[inputs.index(label)], kernel[kernels.index(label)], result[outputs.index(label)])
        valid *= _valid(*sizes, **row)
    per_group = data[inputs.index("f")] // groups
    return 2 * per_group * result[outputs.index("f")] * (data[inputs.index("b")] // batch_groups) * valid


def _window(text: str, axes: int) -> list[Mapping[str, int]]:
    """ "{size=3x3 pad=1_1x1_1 stride=2x2}" → a mapping for every spatial axis."""
    given = dict(word.split("=", 1) for word in text.strip("{}").split())

    def numbers(key: str, default: str) -> list[str]:
        return given[key].split("x") if key in given else [default] * axes

    return [
        {"stride": int(stride), "low": int(pad.split("_")[0]), "spread": int(spread), "dilation": int(dilation)}
        for stride, pad, spread, dilation in zip(
            numbers("stride", "1"), numbers("pad", "0_0"), numbers("lhs_dilate", "1"), numbers("rhs_dilate", "1")
        )
    ]


def _valid(size: int, taps: int, results: int, *, stride: int, low: int, spread: int, dilation: int) -> int:
    """Pairs of a result and a tap of the kernel that meet an element of the data along one axis."""
    total = 0
    starts = np.arange(results, dtype=np.int64) * stride - low
    for tap in range(taps):
        place = starts + tap * dilation
        total += int(np.count_nonzero((place >= 0) & (place < (size - 1) * spread + 1) & (place % spread == 0)))
    return total
