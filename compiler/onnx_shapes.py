"""Shapes by ONNX's own inference, for forms of operators that onnx-shape-inference does not know (opsets 1 to 9)."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnx_shape_inference as osi
from pfvm.passes import schema
from pfvm.passes.view import constant_tensor

_SMALL = 64
"""Constants of at most so many elements are shown to ONNX: bounds, axes, shapes."""


def infer(context: osi.ShapeInferenceContext, node: ir.Node, opset: int) -> bool:
    """Set the outputs' types and shapes; False where ONNX does not know this operator, or has no rule for it.

    Symbols stay where ONNX hands them on; a dim that it leaves open is a new symbol. Raises onnx's InferenceError.
    """
    known = schema.find(node.domain, node.op_type, opset)
    if known is None or not known.has_type_and_shape_inference_function:
        return False
    types = {v.name: _type(v) for v in node.inputs if v is not None and v.name and v.type is not None}
    tensors = {v.name: constant_tensor(v) for v in node.inputs if v is not None and v.name}
    data = {
        name: ir.serde.serialize_tensor(tensor)
        for name, tensor in tensors.items()
        if tensor is not None and tensor.size <= _SMALL
    }
    imports = [onnx.helper.make_opsetid(node.domain, opset)]
    found = onnx.shape_inference.infer_node_outputs(known, ir.serde.serialize_node(node), types, data, None, imports)
    for out in node.outputs:
        proto = found.get(out.name or "")
        if proto is None or not proto.HasField("tensor_type"):
            continue
        out.type = ir.serde.deserialize_type_proto_for_type(proto) or out.type
        out.shape = ir.serde.deserialize_type_proto_for_shape(proto)
        context.name_anonymous_dims(out)
    return True


def _type(value: ir.Value) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    assert value.type is not None
    ir.serde.serialize_type_into(proto, value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto
