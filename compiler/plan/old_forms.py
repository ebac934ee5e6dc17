"""Forms of operators that rules would misread, written as newer ones or marked, so that rules know one form only."""

from __future__ import annotations

import math

import onnx_ir as ir
from pfvm.passes.effects import Effect
from pfvm.passes.provenance import location
from pfvm.passes.rewriter import Rewriter

from .ops.table import KIND, dims

_FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")


def modernize(rewriter: Rewriter) -> None:
    """In place: softmax before opset 13 flattens axes; a batch normalization that trains is no multiply-add."""
    model = rewriter.model
    opset = model.opset_imports.get("", 0)
    for node in list(model.graph):
        if node.domain != "":
            continue
        if node.op_type in _FLATTENING and opset < 13:
            _flatten(model, node)
        if trains(node, rewriter):
            node.metadata_props[KIND] = "gathered"


def trains(node: ir.Node, rewriter: Rewriter) -> bool:
    """Is it a batch normalization that computes its own statistics? It is deterministic all the same."""
    return node.domain == "" and node.op_type == "BatchNormalization" and rewriter.effect(node) is not Effect.PURE


def _flatten(model: ir.Model, node: ir.Node) -> None:
    """Softmax(x; axis) → Reshape(Softmax(Flatten(x; axis); axis 1)): all axes from `axis` on are one."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    shape = dims(source)
    axis = node.attributes.get_int("axis", 1)
    axis += len(shape) if axis < 0 else 0
    if axis == len(shape) - 1:
        node.attributes.add(ir.Attr("axis", ir.AttributeType.INT, axis))
        return
    flat = ir.Node("", "Flatten", [source], [ir.Attr("axis", ir.AttributeType.INT, axis)], num_outputs=1)
    rows = ir.Shape([math.prod(shape[:axis]), math.prod(shape[axis:])])
    same = ir.Node("", node.op_type, flat.outputs, [ir.Attr("axis", ir.AttributeType.INT, 1)], num_outputs=1)
    back = ir.Node("", "Reshape", [same.outputs[0], _shape_of(model, out, shape)], num_outputs=1)
    for made, word, size in ((flat, "flat", rows), (same, "rows", rows), (back, "", ir.Shape(shape))):
        made.name = f"{node.name or out.name}/{made.op_type}"
        made.outputs[0].name = f"{out.name}_{word}" if word else None
        made.outputs[0].type, made.outputs[0].shape = out.type, size
        made.metadata_props.update(location(node))
        model.graph.insert_before(node, made)
    name, out.name = out.name, None
    back.outputs[0].name = name
    out.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


def _shape_of(model: ir.Model, out: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    name = f"{out.name}_shape"
    tensor = ir.tensor(shape, dtype=ir.DataType.INT64, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(shape)]), const_value=tensor)
    model.graph.initializers.add(value)
    return value
