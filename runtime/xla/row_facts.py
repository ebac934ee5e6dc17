"""What the rules about rows share: what a value holds, and what is known about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import onnx_ir as ir


class Rows(NamedTuple):
    """Axis `axis` has `factor` elements for each row; those of one row are adjacent."""

    axis: int
    factor: int = 1


class Mixes(Exception):
    """Why the rows of a node's result cannot be told apart."""


class Facts(Protocol):
    """What is known about the values of the graph."""

    def rank(self, value: ir.Value) -> int:
        """Raises Mixes where it is unknown."""

    def dim(self, value: ir.Value, axis: int) -> int | None:
        """A static size, else None."""

    def row_axis(self, value: ir.Value) -> int | None:
        """The only axis whose size is exactly the number of rows, as shape inference found it; else None."""

    def ints(self, value: ir.Value) -> list[int] | None:
        """The elements of a constant, else None."""

    def flag(self, value: ir.Value) -> bool | None:
        """A constant truth value, else None."""

    def opset(self, domain: str) -> int:
        """Of the main graph."""


Operands = Sequence[Rows | None]
Rule = Callable[[ir.Node, Facts, Operands], list[Rows]]


def only_first(operands: Operands) -> Rows:
    """The rows of the first operand, where no other has any."""
    if operands[0] is None or any(rows is not None for rows in operands[1:]):
        raise Mixes("a parameter of it has rows")
    return operands[0]


def first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def axis_of(node: ir.Node, facts: Facts, axis: int) -> int:
    return axis if axis >= 0 else axis + facts.rank(first(node))


def axes_of(node: ir.Node, facts: Facts) -> list[int] | None:
    """The attribute or constant operand `axes`; [] where it is left out, None where it is not constant."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return facts.ints(node.inputs[1])
    return list(node.attributes.get_ints("axes", ()) or ())


def product(facts: Facts, value: ir.Value, axes: range) -> int | None:
    sizes = [facts.dim(value, axis) for axis in axes]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)
