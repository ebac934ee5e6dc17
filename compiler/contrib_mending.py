"""What to keep of onnx-shape-inference's answers for ONNX Runtime's own operators (com.microsoft)."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnx_shape_inference as osi
from pfvm.passes.dims import Dim

_STATE_LENGTH = 2
"""Axis of a key or value state [batch, heads, length, head size]."""


def _broadcast(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Scales and zero points stand between the operands: symbols, of which either may be 1, are not followed."""
    if node.outputs[0].shape is not None and not node.outputs[0].shape.is_static():
        node.outputs[0].shape = None


def _quantization(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """QuantizeLinear and DequantizeLinear, which the library does not know."""
    operand, out = node.inputs[0], node.outputs[0]
    typed = _input(node, 1 if node.op_type == "DequantizeLinear" else 2)
    out.shape = operand.shape if operand is not None else None
    if typed is not None and typed.type is not None:
        out.type = typed.type


def _gemm(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The result has the type of its zero point, and is float without one; the library takes the scale's."""
    zero_point = _input(node, 8)
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT) if zero_point is None else zero_point.type


def _embedding(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The tables are quantized, the result is not."""
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)


def _unknown(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Pools and means, for which the library hands on the operand's shape."""
    node.outputs[0].shape = None


def _attention(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The heads of the state are those of the result; the library takes the operand's, whose rows may be longer."""
    out = node.outputs[0].shape
    hidden = out[-1] if out is not None else None
    _set_head_size(context, node, 1, None if _input(node, 4) is not None else hidden)


def _multi_head_attention(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Heads of keys and of values may differ in size, and a state that is given may be longer than it is full."""
    for i in (1, 2):
        source = _input(node, i)
        shape = None if source is None else source.shape
        _set_head_size(context, node, i, shape[2] if shape is not None and len(shape) == 3 else None)
    if _input(node, 6) is not None:
        _state_length(context, node)


def _state_length(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """A state may be a buffer that is longer than what is in it, and then does not grow."""
    for out in node.outputs[1:3]:
        if out.shape is not None and len(out.shape) == 4:
            _set_dim(out, _STATE_LENGTH, context.new_symbolic_dim())


def _set_head_size(context: osi.ShapeInferenceContext, node: ir.Node, index: int, hidden: Dim | None) -> None:
    """The last dim of a state, from the length of rows with all heads; a new symbol where that is not known."""
    heads = node.attributes.get_int("num_heads", 0)
    if index < len(node.outputs) and node.outputs[index].shape is not None and heads:
        size = hidden // heads if isinstance(hidden, int) else context.new_symbolic_dim()
        _set_dim(node.outputs[index], -1, size)


def _quantized_lstm(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """x[length, batch, ·] → y[length, directions, batch, hidden], and states without the length."""
    x, hidden = node.inputs[0], node.attributes.get_int("hidden_size", 0)
    if x is None or x.shape is None or len(x.shape) != 3 or not hidden:
        return
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    length, batch, _ = x.shape
    for out, dims in zip(node.outputs, ([length, directions, batch, hidden], *[[directions, batch, hidden]] * 2)):
        out.type, out.shape = x.type, ir.Shape(dims)


def _set_dim(value: ir.Value, axis: int, dim: Dim) -> None:
    dims = list(value.shape or ())
    dims[axis] = dim
    value.shape = ir.Shape(dims)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


MEND: dict[tuple[str, str], Callable[[osi.ShapeInferenceContext, ir.Node], None]] = {
    ("com.microsoft", op): rule
    for rule, ops in {
        _broadcast: "QLinearAdd QLinearMul QLinearWhere",
        _quantization: "QuantizeLinear DequantizeLinear",
        _gemm: "QGemm",
        _embedding: "QEmbedLayerNormalization",
        _unknown: "QLinearAveragePool QLinearGlobalAveragePool QLinearReduceMean GemmFloat8",
        _attention: "Attention QAttention",
        _multi_head_attention: "MultiHeadAttention",
        _quantized_lstm: "DynamicQuantizeLSTM",
        _state_length: "GroupQueryAttention DecoderMaskedMultiHeadAttention",
    }.items()
    for op in ops.split()
}
