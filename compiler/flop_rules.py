"""Operations of operators that a plan runs as any other, but whose count is not one per element.

As in the tables of `compiler/plan/ops`: 2 per multiply-add, 1 per other element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from .plan.ops.table import dims, size

Flops = Callable[[ir.Node], Any]  # an int, or a polynomial where dims are symbolic


def _last_of_data(node: ir.Node) -> Any:
    """A product whose first operand's last axis is contracted."""
    data = dims(node.inputs[0])
    axis = -2 if node.attributes.get_int("transA", 0) and len(data) > 1 else -1
    return 2 * size(node.outputs[0]) * (data or (1,))[axis]


def _conv(node: ir.Node) -> Any:
    return 2 * size(node.outputs[0]) * math.prod(dims(node.inputs[1])[1:])


def _deform_conv(node: ir.Node) -> Any:
    """The product, and bilinear interpolation of four numbers for each of its operands."""
    taps = math.prod(dims(node.inputs[1])[1:])
    out = dims(node.outputs[0])
    return 2 * size(node.outputs[0]) * taps + 8 * out[0] * taps * math.prod(out[2:])


def _einsum(node: ir.Node) -> Any:
    """All labels multiplied: the loops of the definition."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    sizes: dict[str, Any] = {}
    factors = 0
    for term, value in zip(equation.partition("->")[0].split(","), node.inputs):
        shape = dims(value)
        factors += 1
        head, dots, tail = term.partition("...")
        middle = len(shape) - len(head) - len(tail)
        labels = [*head, *([f".{middle - i}" for i in range(middle)] if dots else []), *tail]
        for label, extent in zip(labels, shape):
            if sizes.get(label, 1) == 1:
                sizes[label] = extent
    return max(factors, 1) * math.prod(sizes.values())


def _attention(node: ir.Node) -> Any:
    """Both products and the softmax between; Q, K and V are [batch, heads, length, size] or [batch, length, hidden]."""
    query, key, value = (dims(each) for each in list(node.inputs)[:3])
    queries, keys, batch = query[-2], key[-2], query[0]
    past = node.inputs[4] if len(node.inputs) > 4 else None
    if past is not None:
        keys = keys + dims(past)[-2]
    heads = query[1] if len(query) == 4 else node.attributes.get_int("q_num_heads", 1)
    if len(query) == 4:
        kv_heads, hidden, out = key[1], query[1] * query[3], query[1] * value[3]
    else:
        kv_heads, hidden = node.attributes.get_int("kv_num_heads", heads), query[-1]
        out = value[-1] if kv_heads == heads else value[-1] * (heads // kv_heads)
    return batch * queries * keys * (2 * hidden + 2 * out + 5 * heads)


def _packed_attention(node: ir.Node) -> Any:
    """com.microsoft's Attention: the product that makes Q, K and V, then both products of the attention."""
    (batch, length, width), (_, packed) = dims(node.inputs[0]), dims(node.inputs[1])
    if not isinstance(packed, int) or node.attributes.get_ints("qkv_hidden_sizes", None) is not None:
        raise ValueError
    past = node.inputs[4] if len(node.inputs) > 4 else None
    keys = length if past is None else length + dims(past)[3]
    heads, hidden = node.attributes.get_int("num_heads", 1), packed // 3
    return 2 * batch * length * width * packed + batch * length * keys * (4 * hidden + 5 * heads)


def _multi_head_attention(node: ir.Node) -> Any:
    """com.microsoft's MultiHeadAttention with Q, K and V apart, [batch, length, hidden]; else ValueError."""
    query, key, value = (dims(each) for each in list(node.inputs)[:3])
    if not len(query) == len(key) == len(value) == 3 or any(each is not None for each in list(node.inputs)[6:]):
        raise ValueError
    heads = node.attributes.get_int("num_heads", 1)
    return query[0] * query[1] * key[1] * (2 * query[2] + 2 * value[2] + 5 * heads)


def _many_forms(node: ir.Node) -> Any:
    raise ValueError  # reported as not counted


def _times(count: int) -> Flops:
    return lambda node: count * size(node.outputs[0])


RULES: dict[tuple[str, str], Flops] = {
    ("", "Einsum"): _einsum,
    ("", "Attention"): _attention,
    ("", "DeformConv"): _deform_conv,
    ("", "InstanceNormalization"): _times(5),
    ("", "GroupNormalization"): _times(5),
    ("", "MeanVarianceNormalization"): _times(5),
    ("", "RotaryEmbedding"): _times(3),
    ("com.microsoft", "Attention"): _packed_attention,
    ("com.microsoft", "MultiHeadAttention"): _multi_head_attention,
    ("com.microsoft", "GroupQueryAttention"): _many_forms,
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): _many_forms,
    ("com.microsoft", "QAttention"): _many_forms,
    ("com.microsoft", "FusedConv"): _conv,
    ("com.microsoft", "NhwcFusedConv"): _conv,
    ("com.microsoft", "QuickGelu"): _times(3),
}
RULES |= {
    ("com.microsoft", name): _last_of_data
    for name in (
        *("FusedMatMul", "FusedGemm", "FusedMatMulActivation", "TransposeMatMul", "GemmFastGelu", "MatMulNBits"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger16", "QGemm"),
    )
}
RULES |= {
    ("com.microsoft", name): _times(5)
    for name in (
        *("LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization"),
        *("SkipSimplifiedLayerNormalization", "GroupNorm"),
    )
}
"""By operator. A rule raises ValueError for a form that it does not know, which is reported as not counted."""
