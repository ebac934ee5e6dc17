"""What a convolution takes where its images lie: cycles of the matrix units, and the partial sums that leave them."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from .layout import LANE, TIME, Axis, Layout, SubAxis
from .machine import Machine
from .ops import convolve
from .ops.table import dims
from .placement import placement_of


class Sums(NamedTuple):
    """The partial sums of one convolution. reduced: levels that they are added up over; crossed: those and all others
    whose cells they leave."""

    layout: Layout
    reduced: frozenset[str]
    crossed: frozenset[str]


def matrix_cycles(node: ir.Node, machine: Machine, mode: tuple[int, int]) -> int:
    """Cycles of the busiest matrix unit: one per position, tap and operand block. mode: inputs, outputs."""
    data, weight = _layout(node.inputs[0]), _layout(node.inputs[1])
    axes = convolve.kernel(node)
    outer = _outer(machine)
    moving = node.inputs[0] if node.op_type == "ConvTranspose" else node.outputs[0]
    positions = _room(data.axes[0], outer) * math.prod(dims(moving)[2:])
    depth = _room(data.axes[convolve.CHANNELS], outer)
    width = _room(weight.axes[axes.column], outer)
    return positions * convolve.taps(node) * -(-depth // mode[0]) * -(-width // mode[1])


def partial_sums(node: ir.Node, machine: Machine, lanes: int) -> Sums:
    """What each matrix unit has before its sums are added up. lanes: of the accumulator's dtype."""
    data, weight, out = _layout(node.inputs[0]), _layout(node.inputs[1]), _layout(node.outputs[0])
    column = weight.axes[convolve.kernel(node).column]
    unit, above = machine.matrix_unit.level, _outer(machine)[:-1]
    reduced = {sub.level for sub in data.axes[convolve.CHANNELS] if sub.level in (*above, unit) and sub.size > 1}
    dealt = [sub for sub in column if sub.level in above and sub.size > 1]
    crossed = reduced | {sub.level for sub in dealt}
    if _at(column, unit) != _at(out.axes[convolve.CHANNELS], unit):
        crossed.add(unit)
    rows = [sub for sub in data.axes[0] if sub.level in above]
    room = _room(data.axes[0], above) * _room(column, above) * math.prod(dims(node.outputs[0])[2:])
    names = list(machine.index_levels)
    cells = [SubAxis(machine.index_levels[name], name) for name in names[names.index(unit) + 1 :]]
    words = -(-room // (lanes * math.prod(sub.size for sub in cells)))
    axis = (*rows, *dealt, SubAxis(words), SubAxis(lanes, LANE), *cells)
    return Sums(Layout((math.prod(sub.size for sub in axis),), (axis,)), frozenset(reduced), frozenset(crossed))


def gathered_patches(node: ir.Node) -> tuple[int, int]:
    """Rows and columns of the matrix that a gathered convolution multiplies its weight with: channels once per tap."""
    taps = convolve.taps(node)
    images, channels = dims(node.inputs[0])[:2]
    positions = math.prod(dims(node.inputs[0] if node.op_type == "ConvTranspose" else node.outputs[0])[2:])
    return images * positions, channels * taps


def _layout(value: ir.Value | None) -> Layout:
    assert value is not None
    return placement_of(value).layout


def _outer(machine: Machine) -> tuple[str, ...]:
    """The levels down to the matrix units."""
    names = list(machine.index_levels)
    return tuple(names[: names.index(machine.matrix_unit.level) + 1])


def _room(axis: Axis, levels: tuple[str, ...]) -> int:
    """How much of an axis each cell of these levels has, padding included."""
    return math.prod(sub.size for sub in axis if sub.level not in (*levels, TIME))


def _at(axis: Axis, level: str) -> list[SubAxis]:
    return [sub for sub in axis if sub.level == level and sub.size > 1]
