"""NegativeLogLikelihoodLoss, which ONNX Runtime expands to what its schema says: twice as many small operators."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.view import RUNTIME

_FIRST_OPSET = 13


def negative_log_likelihood(node: ir.Node, rw: Rewriter) -> bool:
    """The loss of rows [N, C] without class weights → GatherElements of the labels' columns, and their sum or mean.

    The same terms are added up in the same order. A label that is ignored counts as column 0, and its term as 0.
    """
    view = rw.view(node)
    scores, labels = view.at(0), view.at(1)
    ignored, reduction = view.attr("ignore_index"), view.attr("reduction")
    if scores is None or labels is None or view.at(2) is not None or RUNTIME in (ignored, reduction):
        return False
    if scores.shape is None or len(scores.shape) != 2 or scores.dtype is None or labels.dtype is None:
        return False
    if (rw.opset(node) or 0) < _FIRST_OPSET:
        return False

    def op(op_type: str, *inputs: ir.Value, **parameters: object) -> ir.Value:
        return rw.op(op_type, *inputs, at=node, **parameters).outputs[0]  # type: ignore[arg-type]

    def number(value: float, dtype: ir.DataType) -> ir.Value:
        return rw.constant(np.asarray(value, dtype.numpy()), f"{node.name}_number", node)

    off = None if ignored is None else op("Equal", labels, number(ignored, labels.dtype))
    column = labels if off is None else op("Where", off, number(0, labels.dtype), labels)
    chosen = op("GatherElements", scores, op("Unsqueeze", column, axes=[1]), axis=1)
    terms = op("Neg", op("Squeeze", chosen, axes=[1]))
    if off is not None:
        terms = op("Where", off, number(0, scores.dtype), terms)
    if reduction == "none":
        rw.replace(node, terms)
    elif reduction == "sum":
        rw.replace(node, op("ReduceSum", terms, keepdims=0))
    elif off is None:
        rw.replace(node, op("ReduceMean", terms, keepdims=0))
    else:
        counted = op("Cast", op("Not", off), to=scores.dtype.value)
        rw.replace(node, op("Div", op("ReduceSum", terms, keepdims=0), op("ReduceSum", counted, keepdims=0)))
    return True
