"""What convolutions in cells and products over rows take: cycles of the matrix units, and the sums that leave them."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from .layout import LANE, TIME, Axis, Layout, SubAxis
from .machine import Machine
from .ops import contract, convolve
from .ops.table import dims
from .placement import placement_of


class Sums(NamedTuple):
    """The partial sums of one node. reduced: levels that they are added up over; crossed: those and all others
    whose cells they leave."""

    layout: Layout
    reduced: frozenset[str]
    crossed: frozenset[str]


def matrix_cycles(node: ir.Node, machine: Machine, mode: tuple[int, int]) -> int:
    """Cycles of the busiest matrix unit: one per position, tap and operand block. mode: inputs, outputs."""
    parts = _parts(node)
    outer = _outer(machine)
    own, depth, width = (_room(axis, outer) for axis in (parts.rows, parts.contracted, parts.column))
    if contract.is_over_rows(node):
        return own * parts.positions * -(-depth * parts.taps // mode[0]) * -(-width // mode[1])
    return own * parts.positions * parts.taps * -(-depth // mode[0]) * -(-width // mode[1])


def partial_sums(node: ir.Node, machine: Machine, lanes: int) -> Sums:
    """What each matrix unit has before its sums are added up. lanes: of the accumulator's dtype."""
    parts = _parts(node)
    unit, outer = machine.matrix_unit.level, _outer(machine)
    reduced = {sub.level for sub in parts.contracted if sub.level in outer and sub.size > 1}
    dealt = [sub for sub in (*parts.rows, *parts.column) if sub.level in outer and sub.size > 1]
    crossed = reduced | {sub.level for sub in parts.column if sub.level in outer[:-1] and sub.size > 1}
    is_there = _at(parts.column, unit) == _at(parts.result, unit) and not _at(parts.rows, unit)
    if not is_there:
        crossed.add(unit)
    # Of a level that sums are added up over, every sum passes.
    apart = [sub for sub in dealt if sub.level not in reduced]
    shared = math.prod(sub.size for sub in dealt if sub.level in reduced)
    room = shared * _room(parts.rows, outer) * _room(parts.column, outer) * parts.results
    cells = [SubAxis(machine.index_levels[name], name) for name in machine.levels_inside_matrix]
    words = -(-room // (lanes * math.prod(sub.size for sub in cells)))
    axis = (*apart, SubAxis(words), SubAxis(lanes, LANE), *cells)
    return Sums(Layout((math.prod(sub.size for sub in axis),), (axis,)), frozenset(reduced), frozenset(crossed))


class _Parts(NamedTuple):
    """A product as axes of layouts: of the data those that stay and those that are contracted, the weight's columns and
    where they go in the result. positions: of the windows; results: of the result, per row and column."""

    rows: Axis
    contracted: Axis
    column: Axis
    result: Axis
    positions: int
    results: int
    taps: int


def _parts(node: ir.Node) -> _Parts:
    data, weight, out = _layout(node.inputs[0]), _layout(node.inputs[1]), _layout(node.outputs[0])
    if not convolve.is_convolution(node):
        axes = contract.product(node)
        column = weight.axes[axes.weight_column]
        return _Parts(data.axes[1 - axes.data_column], data.axes[axes.data_column], column, out.axes[1], 1, 1, 1)
    column = weight.axes[convolve.kernel(node).column]
    results = math.prod(dims(node.outputs[0])[2:])
    positions = math.prod(dims(node.inputs[0])[2:]) if node.op_type == "ConvTranspose" else results
    channels = convolve.CHANNELS
    taps = convolve.taps(node)
    return _Parts(data.axes[0], data.axes[channels], column, out.axes[channels], positions, results, taps)


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
    return (*machine.levels_outside_matrix, machine.matrix_unit.level)


def _room(axis: Axis, levels: tuple[str, ...]) -> int:
    """How much of an axis each cell of these levels has, padding included."""
    return math.prod(sub.size for sub in axis if sub.level not in (*levels, TIME))


def _at(axis: Axis, level: str) -> list[SubAxis]:
    return [sub for sub in axis if sub.level == level and sub.size > 1]
