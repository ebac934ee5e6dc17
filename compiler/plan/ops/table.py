"""What a plan knows of each operator: how it runs, what it reads of padding, what it costs in operations.

One row per operator, in the file of its family beside this one. What has no row runs gathered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import onnx_ir as ir
from pfvm.compiler.plan.mngraph import is_move
from pfvm.compiler.plan.placement import Pad

Kind = Literal["elementwise", "reduce", "contract", "convolve", "window", "reuse", "move", "gathered", "constant"]


class PadNeed(NamedTuple):
    """What must stand in the padding of these axes of an operand, because the node reads it."""

    pad: Pad
    axes: tuple[int, ...]


def _nothing(node: ir.Node) -> tuple[PadNeed | None, ...]:
    return (None,) * len(node.inputs)


def _no_inputs(node: ir.Node) -> tuple[int, ...]:
    return ()


def elements(node: ir.Node) -> int:
    """One operation per element of the largest output."""
    return max((size(out) for out in node.outputs), default=0)


@dataclass(frozen=True)
class Rule:
    """How one operator runs on a machine.

    kind: elementwise (operands in the output's layout), reduce (the output lies where the input lies, reduced axes
    become copies; softmax and its like keep the layout), contract (a product: partial sums in each cell, reduced over
    the levels of the contracted axes), convolve (a product over the channels of images that are whole in each cell),
    window (elements of such images from their own cell alone), reuse (names its first input's memory again), gathered
    (operands are collected through the tree), move (MNCore* nodes and Identity), constant.
    pad_need: per input. keeps_zero: padding of zeros stays zeros. flops: 2 per multiply-add, 1 per other element.
    reads_dram: inputs that may stay in DRAM.
    """

    kind: Kind
    flops: Callable[[ir.Node], int] = elements
    pad_need: Callable[[ir.Node], tuple[PadNeed | None, ...]] = _nothing
    keeps_zero: bool = False
    reads_dram: Callable[[ir.Node], tuple[int, ...]] = _no_inputs


def size(value: ir.Value | None) -> int:
    """Elements of a value of fixed shape."""
    return 0 if value is None or value.shape is None else math.prod(dims(value))


def rank(value: ir.Value | None) -> int:
    """Axes of a value of known rank."""
    return 0 if value is None or value.shape is None else len(value.shape)


def dims(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of a value of fixed shape."""
    return () if value is None or value.shape is None else tuple(value.shape.numpy())


@functools.cache
def _rows() -> Mapping[tuple[str, str], Rule]:
    from . import contract, elementwise, gathered, reduce, reuse

    rows: dict[tuple[str, str], Rule] = {}
    for family in (elementwise, reduce, contract, reuse, gathered):
        rows |= family.RULES
    return rows


_MOVE = Rule("move", flops=lambda node: 0)
_GATHERED = Rule("gathered")


def rule_of(node: ir.Node) -> Rule:
    """The rule of a node: what `prepare` wrote to its metadata, its operator's row, else gathered."""
    if is_move(node):
        return _MOVE
    found = _marked().get(node.metadata_props.get(KIND, ""))
    return found or _rows().get((node.domain, node.op_type)) or _GATHERED


def has_row(domain: str, op_type: str) -> bool:
    """Has the operator a rule of its own?"""
    return (domain, op_type) in _rows()


KIND = "pfvm.kind"
"""Node metadata that overrides the operator's row: "elementwise" on a call whose body is nothing else, "gathered",
"convolve" and "window" on nodes that were chosen to run where their images lie."""


def body_flops(node: ir.Node) -> int:
    """Operations of an elementwise function: as many per element as its body has nodes (metadata pfvm.steps)."""
    return elements(node) * int(node.metadata_props.get(STEPS, 1))


STEPS = "pfvm.steps"


@functools.cache
def _marked() -> Mapping[str, Rule]:
    from .convolve import MARKED

    return {"elementwise": Rule("elementwise", flops=body_flops), "gathered": _GATHERED, **MARKED}
