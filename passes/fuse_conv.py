"""fuse-conv: what follows a convolution by a constant per channel goes into its weights."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dtypes import FLOATS
from .matching import along, either_way, far_from_overflow, statistics_as_affine
from .rewriter import Rewriter, inherit
from .rules import apply_rules, rule, rules_in
from .tensor_bytes import is_shared
from .view import constant, constant_tensor, is_parameterized

_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclasses.dataclass(frozen=True)
class FuseConv:
    """Fold BatchNormalization, a scale or a shift into the Conv or ConvTranspose before it.

    before:  x ─ Conv(W, b) ─ BatchNormalization(s, t, mean, var) ─ Mul(·, k) ─ Add(·, c[C,1,1]) ─ y
    after:   x ─ Conv(W', b') ─ y

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
    conv, view = _convolution(node.inputs[0], node, rw, "normalized"), rw.view(node)
    epsilon = view.attr("epsilon")
    if conv is None:
        return False
    if view.used_outputs() != [0] or (view.opset >= 14 and view.attr("training_mode") != 0):
        return rw.reject("normalized", "the normalization is in training mode")
    if view.opset < 9 or not isinstance(epsilon, float):
        return rw.reject("normalized", "before opset 9, or epsilon is a parameter of the function")
    with np.errstate(all="ignore"):
        affine = statistics_as_affine(node, epsilon)
    if affine is None:
        return rw.reject("normalized", "scale, shift, mean or variance is not constant")
    return _fold(node, conv, rw, "normalized", *affine)


@rule("Mul", "Div")
def scaled(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(x) · k → Conv(x), with one k per channel, or one for all; Conv(x) / k likewise."""
    found = _convolution_and_numbers(node, rw, "scaled")
    if found is None:
        return False
    conv, numbers = found
    with np.errstate(all="ignore"):
        factor = numbers if node.op_type == "Mul" else 1 / numbers
    return _fold(node, conv, rw, "scaled", factor, np.zeros(1))


@rule("Add", "Sub")
def shifted(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(x) + k → Conv(x) with a bias; Conv(x) − k likewise."""
    found = _convolution_and_numbers(node, rw, "shifted")
    if found is None:
        return False
    conv, numbers = found
    return _fold(node, conv, rw, "shifted", None, numbers if node.op_type == "Add" else -numbers)


def _convolution(value: ir.Value | None, reader: ir.Node, rw: Rewriter, rule: str) -> ir.Node | None:
    """The convolution with constant weights that only `reader` reads; of another one, `rule` is rejected with why."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.op_type not in _CONVOLUTIONS or not rw.is_standard(node):
        return None
    weights = [constant_tensor(each) for each in node.inputs[1:] if each is not None]
    why = ""
    if value.dtype not in FLOATS:
        why = "not float or double"
    elif value.is_graph_output() or len(value.uses()) != 1 or node.graph is not reader.graph:
        why = "the convolution is needed elsewhere, or in another graph"
    elif (rw.opset(node) or 0) < 7 or is_parameterized(node):
        why = "before opset 7, or an attribute is a parameter of the function"
    elif not weights or any(tensor is None for tensor in weights):
        why = "the weights are not constant"
    if why:
        rw.reject(rule, why)
    return None if why else node


def _convolution_and_numbers(node: ir.Node, rw: Rewriter, rule: str) -> tuple[ir.Node, np.ndarray] | None:
    """The operands of an elementwise operator, where they are a convolution and constants for its channels."""
    for value, other in either_way(node):
        conv = _convolution(value, node, rw, rule)
        if conv is None:
            continue
        rank = len(value.shape) if value.shape is not None else 0
        numbers = along(other, rank, 1, _channels(conv, rw)) if rank >= 3 else None
        if numbers is not None:
            return conv, numbers
        rw.reject(rule, "the other operand is not a constant with one number for each channel")
    return None


def _channels(conv: ir.Node, rw: Rewriter) -> int:
    tensor = constant_tensor(conv.inputs[1])
    assert tensor is not None
    shape = tensor.shape.numpy()
    return shape[0] if conv.op_type == "Conv" else shape[1] * rw.view(conv).attr("group")


def _fold(node: ir.Node, conv: ir.Node, rw: Rewriter, rule: str, factor: np.ndarray | None, shift: np.ndarray) -> bool:
    """Replace `node`, which is conv(x) · factor + shift by channel; `factor` is None for one."""
    weight, bias = conv.inputs[1], conv.inputs[2] if len(conv.inputs) > 2 else None
    tensor, channels = constant_tensor(weight), _channels(conv, rw)
    assert weight is not None and tensor is not None
    if (factor is not None and factor.size not in (1, channels)) or shift.size not in (1, channels):
        return rw.reject(rule, "not one number for each channel")
    kind = tensor.dtype.numpy()
    operands: list[ir.Value | None] = [conv.inputs[0], weight]
    offset = np.zeros(channels)
    with np.errstate(all="ignore"):
        if bias is not None:
            offset = offset + np.asarray(constant(bias), np.float64)
        offset = (offset if factor is None else offset * factor) + shift
        arrays: dict[int, np.ndarray] = {2: offset.astype(kind)}
        if factor is not None:
            if is_shared(weight, tensor):
                return rw.reject(rule, "the weights are needed elsewhere")
            arrays[1] = _scale(conv, np.asarray(tensor.numpy(), np.float64), factor, channels, rw).astype(kind)
    if not all(np.all(np.isfinite(array)) for array in arrays.values()):
        return rw.reject(rule, "the new weights are not finite")
    if 1 in arrays and not far_from_overflow(arrays[1]):
        return rw.reject(rule, "the new weights are so large that sums overflow")
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
