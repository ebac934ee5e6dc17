"""What is known of a mask's numbers before the model runs: how low and high they are, and which are hidden."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from . import uniform
from .matching import number
from .rewriter import Rewriter
from .view import constant, is_parameterized

HIDDEN = -1e37
"""A score this low has no share in a softmax with any that is not: e to the difference is exactly 0 in float."""
Bounds = tuple[float, float]
_ANY = (-math.inf, math.inf)
_MOVES = frozenset(
    {"Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Transpose", "Slice", "Gather", "Flatten", "Split"}
)
_DEPTH = 24


def bounds(value: ir.Value | None, rw: Rewriter, depth: int = _DEPTH) -> Bounds:
    """Numbers between which all of the value's are in every run; infinite where nothing is known.

    What may be NaN, as float inputs may, is unbounded.
    """
    if value is None or value.dtype is None:
        return _ANY
    known = constant(value)
    if known is not None:
        return _of_array(known, value.dtype)
    node = value.producer()
    found = _ANY
    if node is not None and rw.is_standard(node) and depth:
        found = _of_node(node, rw, depth - 1)
    low, high = _of_type(value.dtype)
    return max(found[0], low), min(found[1], high)


def _of_type(dtype: ir.DataType) -> Bounds:
    if dtype == ir.DataType.BOOL:
        return 0.0, 1.0
    if not dtype.is_integer() or not np.issubdtype(dtype.numpy(), np.integer):  # those of 4 bits are no numpy types
        return _ANY
    info = np.iinfo(dtype.numpy())
    return float(info.min), float(info.max)


def _of_array(known: np.ndarray, dtype: ir.DataType) -> Bounds:
    if not known.size or dtype == ir.DataType.STRING:
        return _ANY
    numbers = known.astype(np.float64)
    return _ANY if np.isnan(numbers).any() else (float(numbers.min()), float(numbers.max()))


def _of_node(node: ir.Node, rw: Rewriter, depth: int) -> Bounds:
    op, operands = node.op_type, node.inputs
    if op in _MOVES or (op == "Cast" and _widens(node)):
        return bounds(operands[0], rw, depth)
    if op == "Neg":
        low, high = bounds(operands[0], rw, depth)
        return -high, -low
    if op == "Where":
        return _union([bounds(value, rw, depth) for value in operands[1:]])
    if op == "Concat":
        return _union([bounds(value, rw, depth) for value in operands])
    if op in ("Min", "Max"):
        all_of = [bounds(value, rw, depth) for value in operands]
        pick = min if op == "Min" else max
        return pick(each[0] for each in all_of), pick(each[1] for each in all_of)
    dtype = node.outputs[0].dtype
    if op in ("Add", "Sub", "Mul") and dtype is not None and not dtype.is_integer():  # those wrap around
        return _arithmetic(op, bounds(operands[0], rw, depth), bounds(operands[1], rw, depth))
    return _ANY


def _widens(cast: ir.Node) -> bool:
    """Whether a Cast to float keeps an order of magnitude: not from double or another float's infinities."""
    source, target = cast.inputs[0], cast.outputs[0].dtype
    if source is None or source.dtype is None or target not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False
    return source.dtype == ir.DataType.BOOL or source.dtype.is_integer()


def _union(found: Sequence[Bounds]) -> Bounds:
    return min(low for low, _ in found), max(high for _, high in found)


def _arithmetic(op: str, a: Bounds, b: Bounds) -> Bounds:
    """Of finite numbers; with an infinity, anything may come out, NaN too."""
    if not all(math.isfinite(each) for each in (*a, *b)):
        return _ANY
    if op == "Add":
        return a[0] + b[0], a[1] + b[1]
    if op == "Sub":
        return a[0] - b[1], a[1] - b[0]
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def leaves_a_key(mask: ir.Value, rw: Rewriter) -> bool:
    """Whether an added mask is proved to leave in each row a key that is not hidden."""
    known = constant(mask)
    if known is not None:
        return bool(known.size) and bool((known > HIDDEN).any(axis=-1).all()) and not np.isnan(known).any()
    return bounds(mask, rw)[0] > HIDDEN


def hides_the_future(mask: ir.Value, rw: Rewriter) -> bool:
    """Whether an added mask is 0 up to the diagonal and hides what is behind it: a constant, or its first rows."""
    known = _first(mask, rw)
    if known is None or known.ndim < 2:
        return False
    shown = np.tril(np.ones(known.shape[-2:], bool))
    return bool((known == 0)[..., shown].all()) and bool((known <= HIDDEN)[..., ~shown].all())


def shown_keys(where: ir.Node, rw: Rewriter) -> np.ndarray | None:
    """True where the Where hands on scores, of a constant condition or its first rows, which hides the others."""
    known, shown = _first(where.inputs[0], rw), True
    if number(where.inputs[1]) is not None:
        shown = False
    by = number(where.inputs[2 if shown else 1])
    if known is None or known.ndim < 2 or by is None or not by <= HIDDEN:
        return None
    return known if shown else ~known


def is_causal(shown: np.ndarray) -> bool:
    """Whether each query sees the keys up to its own position."""
    return bool((shown == np.tril(np.ones(shown.shape[-2:], bool))).all())


def _first(value: ir.Value | None, rw: Rewriter) -> np.ndarray | None:
    """The constant that the value is, or is the first rows and columns of, seen from the last two axes.

    A triangle of equal numbers, of whatever size, is the first rows and columns of a larger one.
    """
    node = rw.producer(value, "Slice")
    while value is not None and node is not None and constant(value) is None:
        view, shape = rw.view(node), value.shape
        axes, starts = view.sliced_axes(), view.ints("starts")
        if shape is None or not isinstance(axes, tuple) or not isinstance(starts, tuple) or not view.is_dense_cut():
            return None
        if any(starts) or any(axis % len(shape) < len(shape) - 2 for axis in axes):
            return None
        value = node.inputs[0]
        node = rw.producer(value, "Slice")
    known = constant(value)
    return _triangle(value, rw) if known is None else known


def _triangle(value: ir.Value | None, rw: Rewriter) -> np.ndarray | None:
    """Trilu of equal numbers, for three positions."""
    node = rw.producer(value, "Trilu")
    filled = uniform.value(node.inputs[0], rw) if node is not None else None
    if node is None or filled is None or is_parameterized(node):
        return None
    view = rw.view(node)
    by = view.at(1)
    shift = 0.0 if by is None else number(by)
    if shift not in (-1.0, 0.0, 1.0):
        return None
    cut = np.triu if view.attr("upper") == 1 else np.tril
    return cut(np.full((3, 3), filled), int(shift))
