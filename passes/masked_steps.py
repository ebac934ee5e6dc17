"""Attention written out, with all that is laid over its scores: softmax(q kᵀ · scale + mask) v."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .attention_steps import product_with_values, scaled_product, scores_of
from .matching import number
from .rewriter import Rewriter
from .score_terms import Term, peel


@dataclasses.dataclass(frozen=True)
class MaskedSteps:
    """Operands of [batch, heads, length, size] and the product `last`, which computes the same form.

    `keys` is kᵀ: [batch, heads, size, length]. `terms` are laid over the scores, the last first. `guarded`: a query
    that sees no key gets zeros, and not what is no number.
    """

    query: ir.Value
    keys: ir.Value
    values: ir.Value
    scale: float
    terms: tuple[Term, ...]
    guarded: bool
    last: ir.Node


def masked_steps(softmax: ir.Node, rw: Rewriter, rule: str) -> MaskedSteps | None:
    """The steps around a Softmax of four dims in float; None where there are others, `rule` rejected with why."""
    scores = scores_of(softmax, rw)
    if scores is None:
        return None
    inside: list[ir.Node] = [softmax]
    weights = _guarded(softmax.outputs[0], rw, inside)
    found = product_with_values(weights, rw, rule)
    if found is None:
        return None
    last, values = found
    terms, value = peel(scores, rw, inside)
    product = scaled_product(value, values, [*inside, last], rw, rule)
    if product is None:
        return None
    query, keys, scale = product
    guarded = weights is not softmax.outputs[0]
    return MaskedSteps(query, keys, values, scale, tuple(terms), guarded, last)


def _guarded(weights: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> ir.Value:
    """Where(IsNaN(p), 0, p) of the probabilities, else p itself."""
    readers = {use.node.op_type: use.node for use in weights.uses()}
    test, choice = readers.get("IsNaN"), readers.get("Where")
    if set(readers) != {"IsNaN", "Where"} or test is None or choice is None or len(weights.uses()) != 2:
        return weights
    condition, zero, otherwise = choice.inputs
    if condition is not test.outputs[0] or number(zero) != 0 or otherwise is not weights:
        return weights
    if not rw.is_standard(test) or not rw.is_standard(choice) or choice.outputs[0].shape is None:
        return weights
    if len(choice.outputs[0].shape) != 4:
        return weights
    nodes.extend((test, choice))
    return choice.outputs[0]
