"""fuse-conv: what follows a convolution by a constant per channel goes into its weights."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .rewriter import Rewriter, inherit
from .rules import apply_rules, rule, rules_in
from .view import RUNTIME, constant, constant_tensor

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_SHARED_BYTES = 4096
"""Weights that others read as well are stored a second time up to this size."""


@dataclasses.dataclass(frozen=True)
class FuseConv:
    """Fold BatchNormalization, a scale, a shift, or zero padding into the Conv or ConvTranspose beside it.

    before:  x ─ Pad(0) ─ Conv(W, b) ─ BatchNormalization(s, t, mean, var) ─ Mul(·, k) ─ Add(·, c[C,1,1]) ─ y
    after:   x ─ Conv(W', b', pads) ─ y

    Only in inference, with constant weights and statistics, in float and double, and where nobody else reads the
    convolution. The new weights are computed in double and must be finite. The terms of a sum are scaled before they
    are added up, so results differ by rounding.
    """

    name: ClassVar[str] = "fuse-conv"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("BatchNormalization")
def normalized(node: ir.Node, rw: Rewriter) -> bool:
    """BatchNormalization(Conv(x)) → Conv(x)."""
    conv, view = _convolution(node.inputs[0], node, rw), rw.view(node)
    epsilon = view.attr("epsilon")
    if conv is None or view.used_outputs() != [0] or view.opset < 9 or not isinstance(epsilon, float):
        return False
    if view.opset >= 14 and view.attr("training_mode") != 0:
        return False
    statistics = [constant(value) for value in node.inputs[1:5]]
    if len(statistics) != 4 or any(array is None or array.ndim != 1 for array in statistics):
        return rw.reject("normalized", "scale, shift, mean or variance is not constant")
    scale, shift, mean, variance = (np.asarray(array, np.float64) for array in statistics)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        return _fold(node, conv, rw, "normalized", factor, shift - mean * factor)


@rule("Mul", "Div")
def scaled(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(x) · k → Conv(x), with one k per channel, or one for all; Conv(x) / k likewise."""
    found = _convolution_and_numbers(node, rw)
    if found is None:
        return False
    conv, numbers = found
    with np.errstate(all="ignore"):
        factor = numbers if node.op_type == "Mul" else 1 / numbers
    return _fold(node, conv, rw, "scaled", factor, np.zeros(1))


@rule("Add", "Sub")
def shifted(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(x) + k → Conv(x) with a bias; Conv(x) − k likewise."""
    found = _convolution_and_numbers(node, rw)
    if found is None:
        return False
    conv, numbers = found
    return _fold(node, conv, rw, "shifted", None, numbers if node.op_type == "Add" else -numbers)


@rule("Conv")
def padded(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(Pad(x)) → Conv(x, pads), where Pad adds zeros to spatial dims alone."""
    pad = rw.producer(node.inputs[0], "Pad")
    view = rw.view(node)
    if pad is None or pad.inputs[0] is None or view.attr("auto_pad") not in ("NOTSET", "VALID"):
        return False
    inner = rw.view(pad)
    amounts, mode = inner.ints("pads") if inner.opset >= 2 else None, inner.attr("mode")
    if not isinstance(amounts, tuple) or mode != "constant" or inner.at(3) is not None or min(amounts) < 0:
        return False
    filling = inner.param("constant_value" if inner.opset >= 11 else "value")
    if filling is RUNTIME or (filling is not None and np.any(np.asarray(filling) != 0)):
        return rw.reject("padded", "the padding is not zero")
    rank = len(amounts) // 2
    if any(amounts[i] for i in (0, 1, rank, rank + 1)):
        return rw.reject("padded", "batch or channels are padded")
    own = view.attr("pads")
    if own is RUNTIME:
        return False
    if own is None or view.attr("auto_pad") == "VALID":
        own = (0,) * (2 * rank - 4)
    spatial = [a + b for a, b in zip(own, [*amounts[2:rank], *amounts[rank + 2 :]])]
    kept = [attr for name, attr in node.attributes.items() if name not in ("pads", "auto_pad")]
    new = rw.op("Conv", pad.inputs[0], *node.inputs[1:], at=node, attributes=kept, pads=spatial)
    rw.replace(node, new.outputs[0])
    return True


def _convolution(value: ir.Value | None, reader: ir.Node, rw: Rewriter) -> ir.Node | None:
    """The convolution with constant weights that only `reader` reads."""
    if value is None or value.dtype not in _FLOATS or value.is_graph_output() or len(value.uses()) != 1:
        return None
    node = value.producer()
    if node is None or node.op_type not in _CONVOLUTIONS or not rw.is_standard(node) or node.graph is not reader.graph:
        return None
    if (rw.opset(node) or 0) < 7 or any(attr.is_ref() for attr in node.attributes.values()):
        return None
    weights = [constant_tensor(each) for each in node.inputs[1:] if each is not None]
    return node if weights and all(tensor is not None for tensor in weights) else None


def _convolution_and_numbers(node: ir.Node, rw: Rewriter) -> tuple[ir.Node, np.ndarray] | None:
    """The operands of an elementwise operator, where they are a convolution and constants for its channels."""
    for value, other in (node.inputs, node.inputs[::-1]) if node.op_type in ("Mul", "Add") else (node.inputs,):
        conv = _convolution(value, node, rw)
        numbers = _per_channel(other, conv) if conv is not None else None
        if conv is not None and numbers is not None:
            return conv, numbers
    return None


def _channels(conv: ir.Node, rw: Rewriter) -> int:
    tensor = constant_tensor(conv.inputs[1])
    assert tensor is not None
    shape = tensor.shape.numpy()
    return shape[0] if conv.op_type == "Conv" else shape[1] * rw.view(conv).attr("group")


def _per_channel(value: ir.Value | None, conv: ir.Node) -> np.ndarray | None:
    """The constant as one number, or one for each channel of the convolution: of shape [C,1,1] or [1,C,1,1]."""
    tensor, out = constant_tensor(value), conv.outputs[0]
    shape = out.shape
    if tensor is None or shape is None or len(shape) < 3:
        return None
    dims = tensor.shape.numpy()
    padded_dims = (1,) * (len(shape) - len(dims)) + tuple(dims)
    if len(dims) > len(shape) or any(dim != 1 for i, dim in enumerate(padded_dims) if i != 1):
        return None
    if padded_dims[1] not in (1, shape[1]):
        return None
    return np.asarray(tensor.numpy(), np.float64).reshape(-1)


def _fold(node: ir.Node, conv: ir.Node, rw: Rewriter, rule: str, factor: np.ndarray | None, shift: np.ndarray) -> bool:
    """Replace `node`, which is conv(x) · factor + shift by channel; `factor` is None for one."""
    weight, bias = conv.inputs[1], conv.inputs[2] if len(conv.inputs) > 2 else None
    tensor, channels = constant_tensor(weight), _channels(conv, rw)
    assert weight is not None and tensor is not None
    if (factor is not None and factor.size not in (1, channels)) or shift.size not in (1, channels):
        return False
    kind = tensor.dtype.numpy()
    operands: list[ir.Value | None] = [conv.inputs[0], weight]
    offset = np.zeros(channels)
    with np.errstate(all="ignore"):
        if bias is not None:
            offset = offset + np.asarray(constant(bias), np.float64)
        offset = (offset if factor is None else offset * factor) + shift
        arrays: dict[int, np.ndarray] = {2: offset.astype(kind)}
        if factor is not None:
            if len(weight.uses()) > 1 and tensor.nbytes > _SHARED_BYTES:
                return rw.reject(rule, "the weights are needed elsewhere")
            arrays[1] = _scale(conv, np.asarray(tensor.numpy(), np.float64), factor, channels, rw).astype(kind)
    if not all(np.all(np.isfinite(array)) for array in arrays.values()):
        return rw.reject(rule, "the new weights are not finite")
    for index, hint in ((1, weight), (2, bias)):
        if index in arrays and (index == 1 or bias is not None or np.any(offset)):
            name = hint.name if hint is not None and hint.name else f"{weight.name}_bias"
            value = rw.constant(arrays[index], name, node)
            operands[index:] = [value]
    new = rw.op(conv.op_type, *operands, at=node, attributes=conv.attributes.values())
    inherit(new, conv)
    rw.replace(node, new.outputs[0])
    return True


def _scale(conv: ir.Node, weight: np.ndarray, factor: np.ndarray, channels: int, rw: Rewriter) -> np.ndarray:
    """The weights with each output channel scaled; those of ConvTranspose are [C, M / group, …]."""
    factors = np.broadcast_to(factor, (channels,))
    tail = (1,) * (weight.ndim - 2)
    if conv.op_type == "Conv":
        return weight * factors.reshape(channels, 1, *tail)
    group = rw.view(conv).attr("group")
    grouped = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
    return (grouped * factors.reshape(group, 1, channels // group, *tail)).reshape(weight.shape)


RULES = rules_in(globals())
