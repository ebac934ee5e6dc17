"""How an operand must lie, given how the node's output or its other operand lies."""

from __future__ import annotations

import onnx_ir as ir

from .dtypes import device_dtype
from .forms import Forms
from .layout import Layout, LayoutError
from .ops import contract
from .ops.reuse import permutation
from .ops.table import dims


def operand_layout(
    forms: Forms, node: ir.Node, i: int, layout: Layout, dtype: str, operand_dtype: str | None = None
) -> Layout:
    """How operand `i` must lie where the node's output, of `dtype`, lies in `layout`.

    Operands broadcast as numpy's do; what a normalization or a convolution has per channel stands at its axis.
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
    if node.op_type in ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "Conv", "ConvTranspose"):
        return 1
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return node.attributes.get_int("axis", 1) % max(rank, 1)
    return None


def data_layout(forms: Forms, node: ir.Node) -> Layout:
    """The layout of a product's data: a matrix whose columns are contracted, or whose rows are."""
    data = node.inputs[0]
    assert data is not None
    return forms.matrix(dims(data), device_dtype(data), contract.column_of_data(node))


def weight_layout(forms: Forms, node: ir.Node) -> Layout:
    """The layout of a product's second operand beside its data."""
    data, weight = node.inputs[0], node.inputs[1]
    assert data is not None and weight is not None
    axes = contract.product(node)
    beside = data_layout(forms, node)
    return forms.weight(
        dims(weight),
        device_dtype(weight),
        beside,
        device_dtype(data),
        axes.weight_axes,
        axes.weight_column,
        over_copies=contract.is_over_rows(node),
    )


def viewed(layout: Layout, node: ir.Node, shape: tuple[int, ...]) -> Layout | None:
    """The layout of the node's output where its input lies, None where elements would have to move."""
    perm = permutation(node)
    if perm is not None:
        return layout.transposed(perm)
    try:
        return layout.reshaped(shape)
    except LayoutError:
        return None


def viewed_back(layout: Layout | None, node: ir.Node, shape: tuple[int, ...]) -> Layout | None:
    """The layout that the node's input must have for its output to lie so."""
    if layout is None:
        return None
    perm = permutation(node)
    if perm is not None:
        return layout.transposed([perm.index(i) for i in range(len(perm))])
    try:
        return layout.reshaped(shape)
    except LayoutError:
        return None


def gathered_layout(forms: Forms, node: ir.Node, out: ir.Value) -> Layout:
    """Where a gathered node leaves an output that nobody has a wish for."""
    return forms.matrix(dims(out), device_dtype(out), _column(node, out))


def _column(node: ir.Node, out: ir.Value) -> int | None:
    """Images keep their channels, axis 1, in the columns."""
    return 1 if node.op_type in _CHANNELS and len(dims(out)) > 2 else None


_CHANNELS = frozenset(
    (
        *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalLpPool", "BatchNormalization", "LRN"),
        *("InstanceNormalization", "GroupNormalization", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth"),
    )
)
