"""Is every element where the cell that computes with it can read it? Checked once per node, from layouts alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import Machine
from pfvm.errors import describe_node

from .cells import axis_steps, copy_offsets, differences
from .errors import LocalityError
from .values import PlacedValue

Array = np.ndarray
Pairs = Sequence[tuple[int | None, int | None]]  # (axis of the reader, axis of what is read); None: it has none


def broadcast_pairs(reader: Layout, read: Layout) -> list[tuple[int | None, int | None]]:
    """The axes of an output and of an operand that broadcasts to it, as numpy pairs them."""
    lead = len(reader.shape) - len(read.shape)
    return [(i, i - lead if i >= lead else None) for i in range(len(reader.shape))]


def misplaced(
    reader: Layout,
    read: Layout,
    pairs: Pairs,
    machine: Machine,
    exempt: Collection[str] = (),
    every_copy: bool = True,
) -> str | None:
    """The first level at which a cell of `reader` does not hold the element of `read` that it needs; None if all do.

    exempt: levels that the node's own tree or matrix unit spans. every_copy: each copy of the reader's element must
    find it; False: its first copy must.
    """
    for level, size in machine.index_levels.items():
        if level in exempt:
            continue
        ours, theirs = [], []
        for mine, other in pairs:
            a = _steps(reader, mine, level)
            b = _steps(read, other, level)
            if len(a) != len(b) and 1 not in (len(a), len(b)):
                return level
            ours.append(a)
            theirs.append(b)
        held = set(copy_offsets(read, level, size).tolist())
        wanted = copy_offsets(reader, level, size).tolist() if every_copy else [0]
        if any(apart + copy not in held for apart in differences(ours, theirs) for copy in wanted):
            return level
    return None


def never_meet(a: Layout, b: Layout, pairs: Pairs, machine: Machine, exempt: Collection[str] = ()) -> str | None:
    """The first level at which elements of two operands that are multiplied have no cell in common; None: all do.

    pairs: axes of a and of b. Every copy of either counts.
    """
    for level, size in machine.index_levels.items():
        if level in exempt:
            continue
        ours = [_steps(a, mine, level) for mine, _ in pairs]
        theirs = [_steps(b, other, level) for _, other in pairs]
        if any(len(x) != len(y) and 1 not in (len(x), len(y)) for x, y in zip(ours, theirs)):
            return level
        copies = copy_offsets(b, level, size)[:, None] - copy_offsets(a, level, size)[None, :]
        if not differences(ours, theirs) <= set(np.unique(copies).tolist()):
            return level
    return None


def levels_of(layout: Layout, axes: Collection[int]) -> set[str]:
    """The levels over which some axes of a layout are spread."""
    return {sub.level for axis in axes for sub in layout.axes[axis] if sub.size > 1}


def require(
    node: ir.Node,
    reader: PlacedValue,
    read: PlacedValue,
    machine: Machine,
    pairs: Pairs,
    exempt: set[str] | None = None,
) -> None:
    """Raises LocalityError unless every cell of `reader` has what it needs of `read`."""
    level = misplaced(reader.layout, read.layout, pairs, machine, exempt or set())
    if level is not None:
        raise LocalityError(misplaced_text(node, reader, read, level))


def misplaced_text(node: ir.Node, reader: PlacedValue, read: PlacedValue, level: str) -> str:
    """What is wrong where `misplaced` found a level."""
    return (
        f"{describe_node(node)}: elements of {read.name!r} in {read.layout} are not all in the {level} that needs them "
        f"for {reader.name!r} in {reader.layout}"
    )


def _steps(layout: Layout, axis: int | None, level: str) -> Array:
    if axis is None:
        return np.zeros(1, np.int64)
    return axis_steps(layout.axes[axis], level)[: layout.shape[axis]]
