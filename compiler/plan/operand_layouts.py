"""How an operand must lie, given how the node's output or its other operand lies."""

from __future__ import annotations

import onnx_ir as ir

from .dtypes import device_dtype
from .forms import Forms
from .layout import Layout
from .ops import contract
from .ops.table import dims


def operand_layout(
    forms: Forms, node: ir.Node, i: int, layout: Layout, dtype: str, operand_dtype: str | None = None
) -> Layout:
    """How operand `i` must lie where the node's output, of `dtype`, lies in `layout`.

    Operands broadcast as numpy's do; those of a normalization that are per channel stand at its axis.
    """
    value = node.inputs[i]
    assert value is not None
    own = operand_dtype or device_dtype(value)
    mine = forms.convert(layout, dtype, own)
    shape = dims(value)
    axis = _channel_axis(node, i, len(layout.shape))
    if axis is None or len(shape) != 1 or shape[0] == 1:
        return forms.operand(mine, shape, own)
    spread = forms.operand(mine, tuple(shape[0] if k == axis else 1 for k in range(len(layout.shape))), own)
    return forms.filled(shape, [spread.axes[axis]], own)


def _channel_axis(node: ir.Node, i: int, rank: int) -> int | None:
    if i == 0:
        return None
    if node.op_type in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        return 1
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return node.attributes.get_int("axis", 1) % max(rank, 1)
    return None


def data_layout(forms: Forms, node: ir.Node) -> Layout:
    """The layout of a product's data: a matrix whose columns are contracted."""
    data = node.inputs[0]
    assert data is not None
    return forms.matrix(dims(data), device_dtype(data), contract.product(node).data_column)


def weight_layout(forms: Forms, node: ir.Node) -> Layout:
    """The layout of a product's second operand beside its data."""
    data, weight = node.inputs[0], node.inputs[1]
    assert data is not None and weight is not None
    axes = contract.product(node)
    beside = data_layout(forms, node)
    return forms.weight(
        dims(weight), device_dtype(weight), beside, device_dtype(data), axes.weight_axes, axes.weight_column
    )
