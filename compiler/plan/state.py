"""State that a call updates keeps its layout, dtype and address from one call to the next."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.signature import read_manifest

from .dtypes import KEY, device_dtype
from .mngraph import CAST, move_node
from .operands import Operands
from .placement import placement_of

STATE = "pfvm.state_of"
"""Metadata of a graph output: the input whose memory it becomes in the next call."""


def settle_state(model: ir.Model, operands: Operands) -> None:
    """Lays the outputs that update state as the state itself lies, and marks them (metadata STATE)."""
    outputs = {value.name: i for i, value in enumerate(model.graph.outputs)}
    inputs = {value.name: value for value in model.graph.inputs}
    for entry in read_manifest(model):
        if entry.output is None or entry.output not in outputs or entry.name not in inputs:
            continue
        state, i = inputs[entry.name], outputs[entry.output]
        out = model.graph.outputs[i]
        final = _as_state(model.graph, out, state, operands)
        if final is not out:
            name, out.name = out.name, f"{out.name}_before"
            final.name = name
            model.graph.outputs[i] = final
        final.metadata_props[STATE] = str(state.name)


def _as_state(graph: ir.Graph, out: ir.Value, state: ir.Value, operands: Operands) -> ir.Value:
    placed = placement_of(state)
    value = out
    if device_dtype(value) != placed.dtype:
        cast = move_node(CAST, value, f"{value.name}_Cast_{placed.dtype}")
        cast.outputs[0].meta[KEY] = placed.dtype
        graph.append(cast)
        there = placement_of(value)
        value = cast.outputs[0]
        operands.place(value, operands.forms.convert(there.layout, there.dtype, placed.dtype), there.pad)
    if not placement_of(value).layout.is_same_as(placed.layout):
        value = operands.switched_at_end(value, placed.layout)
    return value
