"""ort-attention: attention by one kernel of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .attention_steps import Heads, Steps, attention_steps, heads_of, joined_heads, widened_dims
from .contrib import contrib
from .dims import same_dim
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class OrtAttention:
    """softmax(q kᵀ · scale + mask) v becomes com.microsoft's MultiHeadAttention, where fuse-attention left it.

    before:  q ─ Reshape ─ Transpose ─ MatMul(·, kᵀ) ─ Mul ─ Add mask ─ Softmax ─ MatMul(·, v) ─ Transpose ─ Reshape ─ y
             k ─ Reshape ─ Transpose ──────── ·    v ─ Reshape ─ Transpose ──────────── ·
    after:   q, k, v, mask ─ MultiHeadAttention ─ y

    In float; the mask is added, and nobody else reads a step. Reshapes and Transposes are proved to set heads apart. A
    mask of Where stays: a row that is masked as a whole would come out otherwise.
    """

    name: ClassVar[str] = "ort-attention"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Softmax")
def attention(node: ir.Node, rw: Rewriter) -> bool:
    """The steps around a Softmax → MultiHeadAttention."""
    steps = attention_steps(node, rw, "attention")
    if steps is None:
        return False
    query, keys = steps.query.shape, steps.keys.shape
    assert query is not None and keys is not None
    shape = [query[0], query[1], query[2], keys[3]]
    if steps.mask is not None and not _broadcasts(steps.mask, shape, rw):
        return rw.reject("attention", "the mask is not proved to be one number for each score")
    parts = [
        heads_of(steps.query, rw),
        heads_of(steps.keys, rw, transposed=True) or _untransposed(steps.keys, rw),
        heads_of(steps.values, rw),
    ]
    tail = joined_heads(steps.last, rw)
    if tail is not None and all(part is not None for part in parts):
        known = [part for part in parts if part is not None]
        if len({part.heads for part in known}) == 1 and known[0].size == known[1].size:
            return _by_heads(steps, known, tail, rw)
    return rw.reject("attention", "the heads are not proved to be set apart by Reshape and Transpose")


def _untransposed(keys: ir.Value, rw: Rewriter) -> Heads | None:
    node = rw.producer(keys, "Transpose")
    if node is None or node.inputs[0] is None or rw.view(node).attr("perm") != (0, 1, 3, 2):
        return None
    return heads_of(node.inputs[0], rw)


def _broadcasts(mask: ir.Value, shape: Sequence[int | ir.SymbolicDim], rw: Rewriter) -> bool:
    """Whether the mask widens to the scores, and has their last two dims."""
    if mask.shape is None or not 2 <= len(mask.shape) <= 4 or mask.dtype != ir.DataType.FLOAT:
        return False
    dims = list(zip(reversed(widened_dims(mask, rw)), reversed(shape), strict=False))
    return all(same_dim(own, dim) or (i >= 2 and own == 1) for i, (own, dim) in enumerate(dims))


def _by_heads(steps: Steps, parts: list[Heads], tail: ir.Node, rw: Rewriter) -> bool:
    query, keys, values = (part.joined(tail, rw) for part in parts)
    heads, mask = parts[0].heads, steps.mask
    if mask is not None and mask.shape is not None and len(mask.shape) < 4:
        mask = rw.op("Unsqueeze", mask, at=tail, axes=np.arange(4 - len(mask.shape))).outputs[0]
    given = [query, keys, values, *([None, None, mask] if mask is not None else [])]
    new = contrib(rw, "MultiHeadAttention", *given, at=tail, num_heads=heads, scale=steps.scale)
    joined = new.outputs[0]
    batch = steps.last.outputs[0].shape
    if joined.shape is None and batch is not None:
        joined.shape = ir.Shape([batch[0], batch[2], heads * parts[2].size])
        joined.type = steps.last.outputs[0].type
    rw.replace(tail, rw.op("Reshape", joined, tail.inputs[1], at=tail, attributes=tail.attributes.values()).outputs[0])
    return True


RULES = rules_in(globals())
