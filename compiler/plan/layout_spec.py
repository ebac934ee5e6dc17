"""A plan's layouts as MLSDK's `layout_spec` and `gemm_layout_spec`: what it takes to try them on a real board.

A layout_spec entry fixes the output of every node of one operator and shape, so it is given where all of those agree.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .mngraph import GATHERED, LAYOUT_SWITCH, REUSES, is_move
from .ops import contract
from .ops.table import dims
from .placement import find_placement


def layout_spec(model: ir.Model) -> list[dict[str, Any]]:
    """Entries {trigger, op_type, shape, layout}: "FixOutput" of computing nodes, "SwitchInput" where a switch is."""
    found: dict[tuple[str, str, tuple[int, ...]], set[str]] = {}
    for node in model.graph:
        if node.op_type == LAYOUT_SWITCH and is_move(node):
            for user, _ in node.outputs[0].uses():
                _note(found, "SwitchInput", user, node.outputs[0])
        elif not is_move(node) and REUSES not in node.metadata_props and node.op_type not in ("Constant", "Identity"):
            _note(found, "FixOutput", node, node.outputs[0])
    return [
        {"trigger": trigger, "op_type": op_type, "shape": list(shape), "layout": next(iter(layouts))}
        for (trigger, op_type, shape), layouts in found.items()
        if len(layouts) == 1
    ]


def _note(
    found: dict[tuple[str, str, tuple[int, ...]], set[str]], trigger: str, node: ir.Node, value: ir.Value
) -> None:
    placement = find_placement(value)
    if placement is not None:
        found.setdefault((trigger, node.op_type, dims(value)), set()).add(str(placement.layout))


def gemm_layout_spec(model: ir.Model) -> list[dict[str, Any]]:
    """Entries {key, A, BT, C} of products with a weight of two axes: the data, the weight as (N, K), the output."""
    entries = []
    for node in model.graph:
        if not contract.is_local(node) or GATHERED in node.metadata_props:
            continue
        data, weight, out = (find_placement(value) if value else None for value in _operands(node))
        if data is None or weight is None or out is None or len(weight.layout.shape) != 2:
            continue
        transposed = weight.layout if contract.product(node).weight_column == 0 else weight.layout.transposed((1, 0))
        name = node.inputs[1].name if node.inputs[1] is not None else None
        entries.append({"key": name, "A": str(data.layout), "BT": str(transposed), "C": str(out.layout)})
    return entries


def _operands(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value]:
    return node.inputs[0], node.inputs[1], node.outputs[0]
