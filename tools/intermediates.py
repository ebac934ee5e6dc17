"""Intermediate values of a graph as extra outputs, to find the first node that computes something else."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir


def common_intermediates(a: ir.Model, b: ir.Model) -> list[ir.Value]:
    """Values that nodes of both main graphs compute under the same name, graph outputs left out; in a's order."""
    names_b = {value.name for value in _computed(b)}
    return [value for value in _computed(a) if value.name in names_b]


def with_outputs(model: ir.Model, values: Sequence[ir.Value]) -> ir.Model:
    """A copy of the model whose graph also returns the values of these names; the model itself when there are none."""
    if not values:
        return model
    copy = model.clone()
    by_name = {value.name: value for value in _computed(copy)}
    copy.graph.outputs.extend(by_name[value.name] for value in values)
    return copy


def _computed(model: ir.Model) -> list[ir.Value]:
    return [out for node in model.graph for out in node.outputs if out.name and not out.is_graph_output()]
