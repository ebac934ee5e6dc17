"""Windows over images: have the cells that compute them everything, without a look at a neighbour?"""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.plan.layout import ADDRESS, TIME
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.ops import convolve
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE
from pfvm.errors import describe_node

from .errors import LocalityError
from .locality import Pairs, levels_of, misplaced_text, never_meet, require
from .values import PlacedValue

Operands = list[PlacedValue | None]


def check_convolution(node: ir.Node, inputs: Operands, out: PlacedValue, machine: Machine) -> None:
    """Every weight meets the data of its channel in a matrix unit. Raises LocalityError.

    The sums go anywhere along the levels that channels of data and result are dealt over, and inside a matrix unit
    operands go where they have to.
    """
    data, weight = inputs[0], inputs[1]
    assert data is not None and weight is not None
    _check_whole(node, data)
    _check_whole(node, out)
    inside = set(machine.levels_inside_matrix)
    axes = convolve.kernel(node)
    met: list[tuple[int | None, int | None]] = [(convolve.CHANNELS, axes.contracted), (0, None), (None, axes.column)]
    level = never_meet(data.layout, weight.layout, met, machine, inside)
    if level is not None:
        raise LocalityError(misplaced_text(node, data, weight, level))
    tree = inside | {machine.matrix_unit.level}
    tree |= levels_of(data.layout, [convolve.CHANNELS]) | levels_of(weight.layout, [axes.column])
    require(node, out, data, machine, [(0, 0), (convolve.CHANNELS, None), (None, convolve.CHANNELS)], tree)
    _check_per_channel(node, inputs[2:], out, machine)


def check_window(node: ir.Node, inputs: Operands, out: PlacedValue, machine: Machine) -> None:
    """Every element of the result has its batch and its channel in its own cell. Raises LocalityError."""
    data = inputs[0]
    assert data is not None
    _check_whole(node, data)
    _check_whole(node, out)
    require(node, out, data, machine, [(0, 0), (convolve.CHANNELS, convolve.CHANNELS)])
    _check_per_channel(node, inputs[1:], out, machine)


def _check_per_channel(node: ir.Node, inputs: Operands, out: PlacedValue, machine: Machine) -> None:
    pairs: Pairs = [(0, None), (convolve.CHANNELS, 0)]
    for held in inputs:
        if held is not None and held.placement.location not in (DRAM, IMMEDIATE):
            require(node, out, held, machine, pairs)


def _check_whole(node: ir.Node, held: PlacedValue) -> None:
    for axis in convolve.spatial(held.value):
        for sub in held.layout.axes[axis]:
            if sub.size > 1 and sub.level != ADDRESS:
                where = "time slices" if sub.level == TIME else f"level {sub.level}"
                raise LocalityError(
                    f"{describe_node(node)} slides over axis {axis} of {held.name!r}, which is spread over {where}: "
                    f"{held.layout}"
                )
