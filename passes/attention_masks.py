"""Masks of written-out attention as Attention takes them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from .attention_steps import Steps, widened_dims
from .dims import Dim, same_dim
from .mask_bounds import HIDDEN, bounds, hides_the_future, is_causal, leaves_a_key, shown_keys
from .rewriter import Rewriter
from .view import constant

_RULE = "attention"


@dataclasses.dataclass(frozen=True)
class Hidden:
    """What Attention hides: keys behind the query (`causal`), and what the mask says, added or True for shown keys.

    `widened`: the mask is one row for all queries, which ONNX Runtime's kernel refuses. `square`: as many keys as
    queries.
    """

    causal: bool = False
    mask: ir.Value | np.ndarray | None = None
    widened: bool = False
    square: bool = False

    def operand(self, query: ir.Value, axis: int, at: ir.Node, rw: Rewriter) -> list[ir.Value]:
        """The mask if there is one, a row for each query; `axis` of `query` counts them."""
        mask, name = self.mask, f"{at.outputs[0].name}_mask"
        if isinstance(mask, np.ndarray):
            return [rw.constant(mask, name, at)]
        if mask is None or not self.widened:
            return [] if mask is None else [mask]
        assert mask.shape is not None and query.shape is not None
        ones, length = max(len(mask.shape) - 2, 0), query.shape[axis]
        if isinstance(length, int):
            shape = rw.constant(np.asarray([*[1] * ones, length, 1], np.int64), f"{name}_shape", at)
        else:
            # The mask's own length where it is the same: one Expand then serves all layers.
            source, start = (mask, len(mask.shape) - 1) if self.square else (query, axis)
            size = rw.op("Shape", source, at=at, start=start, end=start + 1).outputs[0]
            parts = [rw.constant(np.ones(n, np.int64), f"{name}_ones", at) for n in (ones, 1) if n]
            order = [parts[0], size, parts[-1]] if ones else [size, parts[-1]]
            shape = rw.op("Concat", *order, at=at, axis=0).outputs[0]
        return [rw.op("Expand", mask, shape, at=at).outputs[0]]


def what_is_hidden(steps: Steps, dims: list[Dim], any_mask: bool, rw: Rewriter) -> Hidden | None:
    """Mask and Where of the steps, whose scores are of `dims`; None, rejected with why, where they cannot be taken."""
    causal, shown, mask = False, None, steps.mask
    if steps.hidden is not None:
        condition, shown = steps.hidden.inputs[0], shown_keys(steps.hidden, rw)
        if condition is None or shown is None or not _meets(condition, dims, rw):
            rw.reject(_RULE, "where scores are hidden is not a constant, one for each score, or they may still count")
            return None
        causal = is_causal(shown)
        if not causal and (constant(condition) is None or mask is not None or not shown.any(axis=-1).all()):
            rw.reject(_RULE, "where scores are hidden and which mask is added are not one mask")
            return None
    if mask is None:
        return Hidden(causal, None if causal else shown)
    if mask.dtype != ir.DataType.FLOAT or not _meets(mask, dims, rw, widened=True):
        rw.reject(_RULE, "the mask is not proved to be one number for each score, or a row of them for all queries")
        return None
    whole = _meets(mask, dims, rw)
    if whole and hides_the_future(mask, rw):
        return Hidden(causal=True)
    if not any_mask and not (bounds(mask, rw)[0] > HIDDEN if causal else leaves_a_key(mask, rw)):
        rw.reject(_RULE, "the mask is not proved to leave each row a key: Attention is 0 where all of a row is hidden")
        return None
    return Hidden(causal, mask, not whole, same_dim(dims[2], dims[3]))


def _meets(value: ir.Value, dims: list[Dim], rw: Rewriter, widened: bool = False) -> bool:
    """Whether it has a number for each query and key; `widened`: or for each key alone."""
    if value.shape is None or not 1 <= len(value.shape) <= 4:
        return False
    own = widened_dims(value, rw)
    own = [*[1] * (4 - len(own)), *own]
    rows = same_dim(own[2], dims[2]) or (widened and own[2] == 1)
    heads = all(a == 1 or same_dim(a, b) for a, b in zip(own[:2], dims[:2], strict=True))
    return rows and same_dim(own[3], dims[3]) and heads
