"""The gradients of convolutions, activations and pools as training steps have them, and how they are found."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from . import uniform
from .column_pairs import Convolution
from .dims import static_shape
from .fuse_relu_gradient import NAME as RELU_GRADIENT
from .matching import only_reader
from .rewriter import SEALED_DOMAIN, Rewriter
from .view import is_parameterized

SWAP = (1, 0, 2, 3)
"""Images and channels exchanged: how the gradient of a weight is a convolution."""


class Gradients(NamedTuple):
    """What is computed of the gradient of a convolution's result, and nothing else is; None: not needed.

    source: ConvTranspose(gradient, weight). weight: Transpose(Conv(Transpose(source), Transpose(gradient))).
    bias: ReduceSum(gradient). `swapped` is the Transpose of the source that `weight` reads.
    """

    source: ir.Node | None
    weight: ir.Node | None
    swapped: ir.Node | None
    bias: ir.Node | None


class Selection(NamedTuple):
    """The gradient of a max pool: a scatter of `updates` [N, C, places] to the places of the maxima."""

    result: ir.Value
    updates: ir.Value
    readers_of_indices: ir.Node


def gradients(conv: Convolution, gradient: ir.Value, rw: Rewriter) -> Gradients | None:
    """Every reader of the gradient of the convolution's result, None where there are others than these, or none."""
    if gradient.is_graph_output() or not gradient.uses():
        return None
    source = weight = swapped = bias = None
    for reader, index in gradient.uses():
        if reader.graph is not conv.node.graph or not rw.is_standard(reader) or is_parameterized(reader):
            return None
        if reader.op_type == "ConvTranspose" and source is None and index == 0 and _is_of_source(reader, conv, rw):
            source = reader
        elif reader.op_type == "ReduceSum" and bias is None and _is_of_bias(reader, rw):
            bias = reader
        elif reader.op_type == "Transpose" and weight is None and (found := _of_weight(reader, conv, rw)):
            swapped, weight = found
        else:
            return None
    return Gradients(source, weight, swapped, bias)


def _is_of_source(node: ir.Node, conv: Convolution, rw: Rewriter) -> bool:
    view = rw.view(node)
    sizes = {*(view.attr("strides") or (1,)), *(view.attr("dilations") or (1,)), view.attr("group")}
    bare = view.at(2) is None and not view.attr("output_shape") and not any(view.attr("output_padding") or (0,))
    same = node.inputs[1] is conv.weight and tuple(view.attr("pads") or (0, 0, 0, 0)) == conv.pads
    return bare and same and sizes == {1} and view.attr("auto_pad") == "NOTSET"


def _is_of_bias(node: ir.Node, rw: Rewriter) -> bool:
    axes = rw.view(node).ints("axes")
    return isinstance(axes, tuple) and {axis % 4 for axis in axes} == {0, 2, 3}


def _of_weight(turned: ir.Node, conv: Convolution, rw: Rewriter) -> tuple[ir.Node, ir.Node] | None:
    """(the Transpose of what the convolution reads, the gradient) from the Transpose of the result's gradient."""
    product = _reader(turned, "Conv", rw)
    if not _swaps(turned, rw) or product is None or product.inputs[1] is not turned.outputs[0]:
        return None
    images = rw.producer(product.inputs[0], "Transpose")
    last = _reader(product, "Transpose", rw)
    if images is None or last is None or not _swaps(images, rw) or not _swaps(last, rw):
        return None
    if is_parameterized(product):
        return None
    view = rw.view(product)
    sizes = {*(view.attr("strides") or (1,)), *(view.attr("dilations") or (1,)), view.attr("group")}
    same = images.inputs[0] is conv.source and tuple(view.attr("pads") or (0, 0, 0, 0)) == conv.pads
    plain = sizes == {1} and view.attr("auto_pad") == "NOTSET" and view.at(2) is None
    return (images, last) if same and plain else None


def _swaps(node: ir.Node, rw: Rewriter) -> bool:
    return rw.view(node).attr("perm") == SWAP


def relu_gradient(value: ir.Value, rw: Rewriter) -> ir.Node | None:
    """The reader of an activation that is the gradient of Relu, pfvm::ReluGrad(value, ·); None: none, or several."""
    found = [
        node
        for node, index in value.uses()
        if index == 0 and node.domain == SEALED_DOMAIN and node.op_type.startswith(RELU_GRADIENT)
    ]
    return found[0] if len(found) == 1 else None


def pool_gradient(pool: ir.Node, rw: Rewriter) -> Selection | None:
    """ScatterElements(0, indices mod plane, updates) in the shape of what the pool reads; nobody else has the indices.

    None where the indices are read in another way.
    """
    shape = static_shape(pool.inputs[0]) if pool.inputs[0] is not None else None
    modulus = _reader_of(pool.outputs[1], "Mod", rw) if len(pool.outputs) > 1 else None
    if shape is None or modulus is None or len(shape) != 4 or modulus.inputs[0] is not pool.outputs[1]:
        return None
    plane = uniform.value(modulus.inputs[1], rw)
    places = _reader(modulus, "Reshape", rw)
    scatter = None if places is None else _reader(places, "ScatterElements", rw)
    last = None if scatter is None else _reader(scatter, "Reshape", rw)
    if plane is None or int(plane) != shape[2] * shape[3] or scatter is None or last is None:
        return None
    if (rw.opset(scatter) or 0) < 16:  # it cannot add
        return None
    data, indices, updates = scatter.inputs
    zero, view = uniform.value(data, rw), rw.view(scatter)
    if places is None or indices is not places.outputs[0] or updates is None or data is None or zero is None:
        return None
    flat = (*shape[:2], shape[2] * shape[3])
    adds = view.attr("reduction") == "add" and view.attr("axis") in (2, -1) and bool(zero == 0)
    pooled = static_shape(pool.outputs[0])
    counted = pooled is not None and static_shape(updates) == (*pooled[:2], pooled[2] * pooled[3])
    fits = static_shape(data) == flat and static_shape(last.outputs[0]) == shape and counted
    return Selection(last.outputs[0], updates, modulus) if adds and fits else None


def _reader(node: ir.Node, op_type: str, rw: Rewriter) -> ir.Node | None:
    return _reader_of(node.outputs[0], op_type, rw)


def _reader_of(value: ir.Value, op_type: str, rw: Rewriter) -> ir.Node | None:
    """The only reader of a value, if it is this operator."""
    reader = only_reader(value)
    return reader if reader is not None and reader.op_type == op_type and rw.is_standard(reader) else None
