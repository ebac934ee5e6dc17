"""Attention written out, with all that is laid over its scores: softmax(q kᵀ · scale + mask) v."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .attention_steps import scaled
from .matching import number, only_reader, read_only_by
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
    view, scores = rw.view(softmax), softmax.inputs[0]
    if scores is None or scores.dtype != ir.DataType.FLOAT or scores.shape is None or view.opset < 13:
        return None
    if len(scores.shape) != 4 or view.attr("axis") not in (-1, 3):
        return None
    inside: list[ir.Node] = [softmax]
    weights = _guarded(softmax.outputs[0], rw, inside)
    last = only_reader(weights)
    if last is None or last.op_type != "MatMul":
        rw.reject(rule, "the probabilities are not read by one product alone")
        return None
    values = last.inputs[1]
    if last.inputs[0] is not weights or values is None or not rw.is_standard(last):
        return None
    terms, value = peel(scores, rw, inside)
    scale, value = scaled(value, rw, inside)
    product = rw.producer(value, "MatMul")
    if product is None:
        return None
    inside.append(product)
    query, keys = product.inputs
    if query is None or keys is None or any(v.shape is None or len(v.shape) != 4 for v in (query, keys, values)):
        return None
    if not read_only_by([*inside, last]):
        rw.reject(rule, "a step is needed elsewhere")
        return None
    own: list[ir.Node] = []
    by_query, query = scaled(query, rw, own)
    by_keys, keys = scaled(keys, rw, own)
    guarded = weights is not softmax.outputs[0]
    return MaskedSteps(query, keys, values, scale * by_query * by_keys, tuple(terms), guarded, last)


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
