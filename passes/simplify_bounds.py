"""simplify-bounds: one bound after another is one bound."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import same_dims
from .dtypes import FLOATS
from .rewriter import Rewriter
from .rules import apply_rules, forward, rule, rules_in
from .view import RUNTIME, constant

_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64})

Bounds = tuple[ir.Value, float, float]
"""x, and the constants between which it is brought: ints of an integer x; infinite where nothing bounds it."""


@dataclasses.dataclass(frozen=True)
class SimplifyBounds:
    """Two of Relu, Clip, Max and Min in a row, with constant bounds, become one Relu, Clip, Max or Min.

    before:  x ─ Max(·, 0) ─ Min(·, 6) ─ y     x ─ Relu ─ Clip(−1, 6) ─ z     x ─ Max(·, 1) ─ Max(·, 2) ─ w
    after:   x ─ Clip(·, 0, 6) ──────── y      x ─ Clip(·, 0, 6) ─────── z    x ─ Max(·, 2) ─────────── w

    Exact; NaN stays NaN. The sign of a zero that is itself a bound may differ, as between runtimes.
    """

    name: ClassVar[str] = "simplify-bounds"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Relu", "Clip", "Max", "Min")
def bounds_in_a_row(node: ir.Node, rw: Rewriter) -> bool:
    """A bounded x that is bounded again → x between both."""
    outer = _bounds(node, rw)
    inner_node = outer[0].producer() if outer is not None else None
    inner = _bounds(inner_node, rw) if inner_node is not None and rw.is_standard(inner_node) else None
    if outer is None or inner is None or inner_node is None:
        return False
    value, low, high = inner
    if low > high or outer[1] > outer[2]:
        return rw.reject("bounds_in_a_row", "a lower bound is above the upper one")
    low, high = (min(max(bound, outer[1]), outer[2]) for bound in (low, high))
    if (low, high) == (-math.inf, math.inf):
        return forward(node, rw, value, "bounds_in_a_row")
    rw.replace(node, _bounded(node, value, low, high, rw).outputs[0])
    return True


def _bounded(node: ir.Node, value: ir.Value, low: float, high: float, rw: Rewriter) -> ir.Node:
    """A Clip between finite bounds; an absent bound of Clip is the largest finite number."""
    assert value.dtype is not None
    if (low, high) == (0, math.inf) and value.dtype in FLOATS:
        return rw.op("Relu", value, at=node)
    kind = value.dtype.numpy()
    if math.isinf(low) or math.isinf(high):
        number = np.asarray(low if math.isinf(high) else high, kind)
        operand = rw.constant(number, f"{node.outputs[0].name}_bound", node)
        return rw.op("Max" if math.isinf(high) else "Min", value, operand, at=node)
    least, most = _limits(value)
    lower, upper = (None if low == least else np.asarray(low, kind)), (None if high == most else np.asarray(high, kind))
    return rw.op("Clip", value, at=node, min=lower, max=upper)


def _limits(value: ir.Value) -> tuple[float, float]:
    """The smallest and the largest finite number of the value's type: of an integer type, as exact ints."""
    assert value.dtype is not None
    kind = value.dtype.numpy()
    if value.dtype in FLOATS:
        return float(np.finfo(kind).min), float(np.finfo(kind).max)
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)


def _bounds(node: ir.Node, rw: Rewriter) -> Bounds | None:
    """What a Relu, or a Clip, Max or Min with constant bounds, does; None before opset 12 for any but floats."""
    opset, value = rw.opset(node) or 0, node.inputs[0] if node.inputs else None
    if value is None or value.dtype not in _TYPES or opset < (11 if value.dtype in FLOATS else 12):
        return None
    if node.op_type == "Relu":
        return value, 0.0, math.inf
    if node.op_type == "Clip":
        bounds = [rw.view(node).param(name) for name in ("min", "max")]
        if RUNTIME in [bound for bound in bounds if not isinstance(bound, np.ndarray)]:
            return None
        low, high = (limit if bound is None else bound for bound, limit in zip(bounds, _limits(value)))
        return _proper(value, low, high)
    if node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    for bounded, by in (node.inputs, node.inputs[::-1]):
        number = constant(by)
        if bounded is None or number is None or number.size != 1 or constant(bounded) is not None:
            continue
        if number.ndim and not same_dims(bounded.shape, node.outputs[0].shape):
            continue
        return _proper(bounded, number, math.inf) if node.op_type == "Max" else _proper(bounded, -math.inf, number)
    return None


def _proper(value: ir.Value, low: np.ndarray | float, high: np.ndarray | float) -> Bounds | None:
    """None for a bound that is NaN, and for a value of another type."""
    if value.dtype not in _TYPES:
        return None
    first, second = (
        np.asarray(bound).reshape(()).item() if isinstance(bound, np.ndarray) else bound for bound in (low, high)
    )
    return None if math.isnan(first) or math.isnan(second) else (value, first, second)


RULES = rules_in(globals())
