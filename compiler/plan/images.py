"""The layouts of images and of what convolves them: spatial axes stay in one cell, so windows need no neighbour."""

from __future__ import annotations

import onnx_ir as ir

from .dtypes import device_dtype
from .forms import Forms
from .layout import Layout
from .ops import contract, convolve
from .ops.table import KIND, dims


def image_layout(forms: Forms, value: ir.Value | None) -> Layout:
    """Batch over the levels that take rows, channels as columns, the spatial axes whole in each cell's addresses.

    (64, 64, 8, 8) of Half on MN-Core 2: ((8_L2B:1, 8_L1B:1), (4_MAB:1, 4_W:1, 4_PE:1), (8:8), (8:1)).
    """
    assert value is not None
    return forms.matrix(dims(value), device_dtype(value), convolve.CHANNELS, convolve.spatial(value))


def data_image_layout(forms: Forms, node: ir.Node) -> Layout:
    """The layout of the images that a node reads; where channels are summed over rows, the batch is the columns."""
    data = node.inputs[0]
    assert data is not None
    if contract.is_over_rows(node):
        return forms.matrix(dims(data), device_dtype(data), 0, convolve.spatial(data))
    return image_layout(forms, data)


def kernel_layout(forms: Forms, node: ir.Node) -> Layout:
    """The weight of a convolution beside its data: taps in addresses.

    The result's channels are dealt to the cells that have copies of the data. Of a convolution of each channel by
    itself, each cell has the weights of its channels.
    """
    data, weight = node.inputs[0], node.inputs[1]
    assert data is not None and weight is not None
    beside = data_image_layout(forms, node)
    if node.metadata_props.get(KIND) == "window":
        return forms.per_column(dims(weight), device_dtype(weight), beside, device_dtype(data), convolve.CHANNELS)
    axes = convolve.kernel(node)
    met = [convolve.CHANNELS if i == axes.contracted else None for i in range(len(dims(weight)))]
    return forms.weight(
        dims(weight), device_dtype(weight), beside, device_dtype(data), met, axes.column, over_copies=True
    )


def words(forms: Forms, value: ir.Value | None, all_images: bool = False) -> int:
    """Long words of a cell that has a value whole: one image of a batch, or all that are its own."""
    assert value is not None
    shape = dims(value) if all_images else (1, *dims(value)[1:])
    return forms.matrix(shape, device_dtype(value), convolve.CHANNELS, convolve.spatial(value)).num_lw()
