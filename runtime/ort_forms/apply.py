"""Which models have something to gain, and the walk over a copy of them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from pfvm.compiler.shapes import ShapeInference
from pfvm.passes.rewriter import SEALED_DOMAIN, Rewriter
from pfvm.passes.rules import Rule, apply_rules
from pfvm.passes.view import constant_tensor

from .branches import selection_by_number
from .convolution import convolution
from .input_gradient import input_gradient
from .negative_log_likelihood import negative_log_likelihood
from .relu_gradient import relu_gradient
from .scaled_sums import inline_update, scaled_sum

RULES: dict[str, list[Rule]] = {
    "Conv": [convolution],
    "ConvTranspose": [input_gradient],
    "NegativeLogLikelihoodLoss": [negative_log_likelihood],
    "Where": [selection_by_number],
    "Add": [scaled_sum],
}
# Calls of the functions that passes make.
_CALLS: tuple[Rule, ...] = (relu_gradient, inline_update)


def with_fast_forms(model: ir.Model) -> ir.Model:
    """The model with the forms of this package, as a copy; the model itself where none is for it."""
    candidates = list(_candidates(model))
    if not candidates:
        return model
    is_inferred = all(node.outputs[0].shape is not None for node in candidates)
    copy = model.clone()
    if not is_inferred:  # as in a file, which holds none of values in between
        ShapeInference(copy).infer_model()
    rw = Rewriter(copy)
    for graph in list(rw.scopes()):
        for node in list(graph):
            if node.domain == SEALED_DOMAIN and not rw.in_function(node):
                for rule in _CALLS:
                    if node.graph is not None and rule(node, rw):
                        rw.matched(rule.__name__)
    apply_rules(rw, RULES)
    return copy if rw.matches else model


def _candidates(model: ir.Model) -> Iterator[ir.Node]:
    """Convolutions by weights that are not constant, losses, and calls of the functions that passes make."""
    for node in model.graph.all_nodes():
        if node.domain == SEALED_DOMAIN or (node.op_type == "NegativeLogLikelihoodLoss" and node.domain == ""):
            yield node
        elif node.op_type in ("Conv", "ConvTranspose") and node.domain == "" and len(node.inputs) > 1:
            w = node.inputs[1]
            if w is not None and constant_tensor(w) is None:
                yield node
