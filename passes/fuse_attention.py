"""fuse-attention: a softmax of scaled products, and the product with the values, are Attention."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .attention_heads import PerHead, per_head
from .attention_masks import Hidden, what_is_hidden
from .attention_steps import Steps, attention_steps, heads_of, joined_heads
from .dims import Dim, same_dim
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in


@dataclasses.dataclass(frozen=True)
class FuseAttention:
    """softmax(q kᵀ · scale + mask) v becomes Attention; heads that share keys and values share them there.

    before:  q ─ Reshape ─ Transpose ─ MatMul(·, kᵀ) ─ Mul ─ Add mask ─ Softmax ─ MatMul(·, v) ─ Transpose ─ Reshape ─ y
             k ─ Reshape ─ Transpose ──────── ·    v ─ Reshape ─ Transpose ──────────── ·
    after:   q, k, v, mask ─ Attention ─ Reshape ─ y

    At opset 23 on, in float, where nobody else reads a step. Where Reshapes and Transposes are proved to set heads
    apart, it takes them in, also of Attention that the file has; else operands of four dims as they are. A constant
    that hides the keys behind the query, added or by Where, is `is_causal`. Any other mask must be proved to leave each
    row a key: where all of a row is hidden, the steps give a mean or NaN, and Attention zeros. `any_mask` takes the
    others, too. Takes 0.4 to 0.9 of the steps' time in ONNX Runtime 1.32 with heads apart, as long as they do without.
    Its kernel refuses a batch or a sequence of nothing, of which the steps make nothing.
    """

    name: ClassVar[str] = "fuse-attention"
    any_mask: bool = False

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, {**RULES, "Softmax": [any_attention]} if self.any_mask else RULES)


@rule("Softmax")
def attention(node: ir.Node, rw: Rewriter) -> bool:
    """The steps around a Softmax → Attention."""
    return _fuse(node, rw, False)


def any_attention(node: ir.Node, rw: Rewriter) -> bool:
    """The steps around a Softmax → Attention, also where a mask may hide a whole row."""
    return _fuse(node, rw, True)


def _fuse(node: ir.Node, rw: Rewriter, any_mask: bool) -> bool:
    steps = attention_steps(node, rw, "attention", where=True)
    if steps is None:
        return False
    if (rw.opset(node) or 0) < 23:
        return rw.reject("attention", "Attention exists from opset 23 on")
    if not 0 < np.float32(steps.scale) < np.inf:
        return rw.reject("attention", "the scale is not positive, which ONNX Runtime refuses, or no float")
    query, found = steps.query, per_head(steps.keys, steps.values, rw)
    if found is None:
        return rw.reject("attention", "the keys are not transposed by a Transpose")
    keys, values = found
    assert query.shape is not None
    if not all(same_dim(query.shape[0], each.dims[0]) for each in (keys, values)):
        return rw.reject("attention", "queries, keys and values are not proved to be of one batch")
    if not (same_dim(keys.dims[1], values.dims[1]) and _shares(query.shape[1], keys.dims[1])):
        return rw.reject("attention", "heads are not proved to share keys and values evenly")
    hidden = what_is_hidden(steps, [*list(query.shape)[:3], keys.dims[2]], any_mask, rw)
    return hidden is not None and _replace(steps, keys, values, hidden, rw)


def _shares(queries: Dim, keys: Dim) -> bool:
    """Whether each head of keys serves as many of queries."""
    if isinstance(queries, int) and isinstance(keys, int):
        return queries == keys or (keys > 0 and queries % keys == 0)
    return same_dim(queries, keys)


def _replace(steps: Steps, keys: PerHead, values: PerHead, hidden: Hidden, rw: Rewriter) -> bool:
    tail, heads = joined_heads(steps.last, rw), heads_of(steps.query, rw)
    causal = int(hidden.causal)
    if tail is None or heads is None or keys.heads is None or values.heads is None:
        last = steps.last
        operands = [steps.query, keys.apart(last, rw), values.apart(last, rw)]
        operands += hidden.operand(steps.query, 2, last, rw)
        new = rw.op("Attention", *operands, at=last, scale=steps.scale, is_causal=causal)
        rw.replace(last, new.outputs[0])
        return True
    query = heads.joined(tail, rw)
    operands = [query, keys.heads.joined(tail, rw), values.heads.joined(tail, rw), *hidden.operand(query, 1, tail, rw)]
    new = rw.op(
        "Attention",
        *operands,
        at=tail,
        scale=steps.scale,
        is_causal=causal,
        q_num_heads=heads.heads,
        kv_num_heads=keys.heads.heads,
    )
    joined = new.outputs[0]
    rw.replace(tail, rw.op("Reshape", joined, tail.inputs[1], at=tail, attributes=tail.attributes.values()).outputs[0])
    return True


@rule("Attention")
def heads_apart(node: ir.Node, rw: Rewriter) -> bool:
    """Attention of heads that Reshapes and Transposes set apart, and join again → of [batch, length, hidden]."""
    query, keys, values, *others = [*node.inputs, *[None] * 4][:7]
    if query is None or keys is None or values is None or any(other is not None for other in others[1:]):
        return False
    if any(value.shape is None or len(value.shape) != 4 for value in (query, keys, values)):
        return False
    if set(rw.view(node).used_outputs()) != {0}:
        return rw.reject("heads_apart", "more than the result is read")
    tail, parts = joined_heads(node, rw), [heads_of(value, rw) for value in (query, keys, values)]
    known = [part for part in parts if part is not None]
    if tail is None or len(known) != 3 or known[1].heads != known[2].heads:
        return rw.reject("heads_apart", "Reshape and Transpose are not proved to set the heads apart and to join them")
    operands = [part.joined(tail, rw) for part in known]
    operands += [others[0]] if others[0] is not None else []
    attributes = [*node.attributes.values()]
    counts = zip(("q_num_heads", "kv_num_heads"), known, strict=False)
    attributes += [ir.AttrInt64(name, part.heads) for name, part in counts]
    joined = rw.op("Attention", *operands, at=tail, attributes=attributes).outputs[0]
    rw.replace(tail, rw.op("Reshape", joined, tail.inputs[1], at=tail, attributes=tail.attributes.values()).outputs[0])
    return True


RULES = rules_in(globals())
