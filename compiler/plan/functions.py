"""Calls of local functions: those that are elementwise inside stay one node, the others are inlined."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common

from .ops.table import KIND, STEPS, has_row, rule_of

_FREE = frozenset({"Constant", "Identity"})


def mark_functions(model: ir.Model) -> None:
    """Inlines every call that has no rule of its own and is not elementwise; marks the elementwise ones, in place."""
    kept = {
        identifier: steps
        for identifier, function in model.functions.items()
        if (steps := _elementwise_steps(function)) or has_row(function.domain, function.name)
    }
    if len(kept) < len(model.functions):
        ir.passes.common.InlinePass(criteria=lambda function: function.identifier() not in kept)(model)
    for node in model.graph:
        steps = kept.get(node.op_identifier(), 0)
        if steps and not has_row(node.domain, node.op_type):
            node.metadata_props[KIND] = "elementwise"
            node.metadata_props[STEPS] = str(steps)


def _elementwise_steps(function: ir.Function) -> int:
    """How many elementwise nodes a body is made of; 0 where it has others."""
    steps = [node for node in function if node.op_type not in _FREE]
    return len(steps) if all(rule_of(node).kind == "elementwise" for node in steps) else 0
