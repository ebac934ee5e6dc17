"""Queries, keys and values computed by the kernel that attends: com.microsoft's Attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .contrib import DOMAIN, contrib
from .matching import either_way, only_reader
from .rewriter import Rewriter
from .tensor_bytes import is_shared
from .view import constant_tensor, is_parameterized

_PAGE = 4096
_OPERANDS = 6
"""Of MultiHeadAttention up to the mask."""


def pack(node: ir.Node, rw: Rewriter, rule: str) -> bool:
    """MultiHeadAttention(x · wq + bq, x · wk + bk, x · wv + bv, mask) → Attention(x, [wq wk wv], [bq bk bv], mask).

    The numbers are the same to the bit. Without a mask MultiHeadAttention has a faster way of its own, and over a
    multiple of 4 KiB the products are better off padded.
    """
    operands = list(node.inputs)
    mask = operands[5] if len(operands) == _OPERANDS else None
    if node.domain != DOMAIN or mask is None or operands[3] is not None or operands[4] is not None:
        return False
    if len(node.outputs) != 1 or is_parameterized(node):
        return False
    layers = [_linear(value, node, rw) for value in operands[:3]]
    known = [layer for layer in layers if layer is not None]
    if len(known) != 3 or len({layer[0] for layer in known}) != 1:
        return rw.reject(rule, "queries, keys and values are not linear layers of one value, read by this alone")
    source, weights, biases = known[0][0], [layer[1] for layer in known], [layer[2] for layer in known]
    shapes = {tuple(weight.shape.numpy()) for weight in weights}
    depth = weights[0].shape.numpy()[0]
    if len(shapes) != 1 or not depth or depth * weights[0].dtype.itemsize % _PAGE == 0:
        return rw.reject(rule, "the layers are not of one size, or of a multiple of 4 KiB")
    name = node.outputs[0].name
    packed = rw.constant(np.concatenate([each.numpy() for each in weights], 1), f"{name}_weight", node, share=False)
    bias = rw.constant(np.concatenate([each.numpy() for each in biases]), f"{name}_bias", node, share=False)
    attributes = {key: attr.value for key, attr in node.attributes.items()}
    new = contrib(rw, "Attention", source, packed, bias, None, None, mask, at=node, **attributes)
    rw.replace(node, new.outputs[0])
    return True


_Layer = tuple[ir.Value, ir.TensorProtocol, ir.TensorProtocol]


def _linear(value: ir.Value | None, reader: ir.Node, rw: Rewriter) -> _Layer | None:
    """x, weight and bias of x · weight + bias, in float, which only `reader` reads."""
    total = rw.producer(value, "Add")
    if total is None or only_reader(total.outputs[0]) is not reader or rw.in_function(total):
        return None
    for inner, by in either_way(total):
        product, bias = rw.producer(inner, "MatMul"), constant_tensor(by)
        if product is None or bias is None or only_reader(inner) is not total:
            continue
        source, weight = product.inputs
        tensor = constant_tensor(weight)
        if source is None or source.shape is None or len(source.shape) != 3 or weight is None or tensor is None:
            continue
        if len(tensor.shape) != 2 or list(bias.shape.numpy()) != [tensor.shape.numpy()[1]]:
            continue
        if tensor.dtype == bias.dtype == ir.DataType.FLOAT and not is_shared(weight, tensor):
            return source, tensor, bias
    return None
