"""fuse-scale: a scale by constants beside a product goes into its weights."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import same_dims
from .dtypes import FLOATS
from .matching import along, either_way, far_from_overflow, only_reader, statistics_as_affine
from .rewriter import Rewriter, inherit
from .rules import apply_rules, rule, rules_in
from .tensor_bytes import is_shared
from .view import constant, constant_tensor, is_parameterized


@dataclasses.dataclass(frozen=True)
class FuseScale:
    """Fold what scales the operand of a MatMul, Gemm or Conv, or the result of a MatMul or Gemm, into the weights.

    before:  x ─ Mul k[C,1,1] ─ Conv(W) ─ y      x ─ Gemm(·, W, b) ─ BatchNormalization(s, t, mean, var) ─ z
    after:   x ─ Conv(W') ─────────────── y      x ─ Gemm(·, W', b') ─ z

    By Mul, Div, Add, Sub or BatchNormalization in inference, with constants for each channel or column, or for all, in
    float and double, where nobody else reads the step between. New weights are computed in double and must be small;
    results differ by rounding. What follows a Conv is fuse-conv's.
    """

    name: ClassVar[str] = "fuse-scale"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Conv", "MatMul", "Gemm")
def scaled_operand(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(x · k, W) → Conv(x, k · W); MatMul and Gemm likewise, for x on the left."""
    operand, weight = node.inputs[0], node.inputs[1]
    scale = operand.producer() if operand is not None else None
    if scale is None or operand is None or scale.op_type not in ("Mul", "Div") or not rw.is_standard(scale):
        return False
    if all(constant_tensor(value) is None for value in scale.inputs):
        return False
    if only_reader(operand) is not node:
        return rw.reject("scaled_operand", "the scaled operand is needed elsewhere")
    if not _foldable(weight, operand, rw, "scaled_operand"):
        return False
    tensor, out = constant_tensor(weight), operand.shape
    assert tensor is not None and weight is not None
    if out is None or (node.op_type == "Gemm" and rw.view(node).attr("transA") != 0):
        return False
    depth = _depth(node, tensor, rw)
    if depth is None:
        return False
    axis = 1 if node.op_type == "Conv" else len(out) - 1
    for value, by in either_way(scale):
        numbers = along(by, len(out), axis, depth)
        if numbers is None:
            continue
        if not same_dims(value.shape, out):
            rw.reject("scaled_operand", "the scale is not proved to leave the shape of what it scales")
            continue
        if rw.producer(value, "Mul") is not None or rw.producer(value, "Div") is not None:
            return rw.reject("scaled_operand", "the scale may be a Gelu's or a norm's, which are found whole")
        with np.errstate(all="ignore"):
            factor = np.broadcast_to(numbers if scale.op_type == "Mul" else 1 / numbers, (depth,))
            new = _scaled_rows(node, np.asarray(tensor.numpy(), np.float64), factor, rw).astype(tensor.dtype.numpy())
        if not far_from_overflow(new):
            return rw.reject("scaled_operand", "the new weights are not finite, or so large that sums overflow")
        made = rw.constant(new, weight.name or "weight", node)
        rw.replace(
            node,
            rw.op(node.op_type, value, made, *node.inputs[2:], at=node, attributes=node.attributes.values()).outputs[0],
        )
        return True
    return False


@rule("Mul", "Div", "Add", "Sub", "BatchNormalization")
def scaled_result(node: ir.Node, rw: Rewriter) -> bool:
    """MatMul(x, W) · k → MatMul(x, W · k); Gemm likewise, with its bias, and with what is added."""
    view = rw.view(node)
    pairs: list[tuple[ir.Value | None, ir.Value | None]]
    if node.op_type == "BatchNormalization":
        found = _normalization(node, rw)
        pairs = [(node.inputs[0], None)]
    else:
        found = None
        pairs = list(either_way(node))
    for value, by in pairs:
        product = value.producer() if value is not None else None
        if product is None or value is None or product.op_type not in ("MatMul", "Gemm"):
            continue
        if not rw.is_standard(product) or value.shape is None or view.opset < 9:
            continue
        if only_reader(value) is not node:
            if by is None or constant_tensor(by) is not None:
                rw.reject("scaled_result", "the product is needed elsewhere")
            continue
        columns = value.shape[-1] if len(value.shape) >= 2 else None
        if not isinstance(columns, int) or not _foldable(product.inputs[1], value, rw, "scaled_result"):
            continue
        if node.op_type != "BatchNormalization":
            numbers = along(by, len(value.shape), len(value.shape) - 1, columns)
            with np.errstate(all="ignore"):
                found = _affine(node.op_type, numbers) if numbers is not None else None
        if found is not None and _fold(node, product, found, columns, rw):
            return True
    return False


Affine = tuple[np.ndarray, np.ndarray]
"""y = x · first + second."""


def _affine(op_type: str, numbers: np.ndarray) -> Affine:
    if op_type in ("Add", "Sub"):
        return np.ones(1), numbers if op_type == "Add" else -numbers
    return numbers if op_type == "Mul" else 1 / numbers, np.zeros(1)


def _normalization(node: ir.Node, rw: Rewriter) -> Affine | None:
    view = rw.view(node)
    epsilon, value = view.attr("epsilon"), node.inputs[0]
    if view.used_outputs() != [0] or view.opset < 9 or not isinstance(epsilon, float) or value is None:
        return None
    if (view.opset >= 14 and view.attr("training_mode") != 0) or value.shape is None or len(value.shape) != 2:
        return None
    with np.errstate(all="ignore"):
        return statistics_as_affine(node, epsilon)


def _fold(node: ir.Node, product: ir.Node, affine: Affine, columns: int, rw: Rewriter) -> bool:
    """Replace `node`, which is product · factor + shift by column."""
    factor, shift = affine
    weight, bias = product.inputs[1], product.inputs[2] if len(product.inputs) > 2 else None
    tensor = constant_tensor(weight)
    assert weight is not None and tensor is not None and node.outputs[0].shape is not None
    view, gemm = rw.view(product), product.op_type == "Gemm"
    shifts = bool(np.any(shift))
    offset = np.zeros(columns) if bias is None else constant(bias)
    if offset is None or np.squeeze(offset).ndim > 1 or (offset.ndim == 2 and offset.shape[0] != 1):
        return rw.reject("scaled_result", "what the product adds is not one constant for each column")
    if not gemm and shifts and len(node.outputs[0].shape) != 2:
        return False  # only Gemm adds, and takes matrices
    if node.op_type in ("Add", "Sub") and bias is None:
        return False  # fuse-matmul-bias's
    kind = tensor.dtype.numpy()
    with np.errstate(all="ignore"):
        wide = np.asarray(tensor.numpy(), np.float64)
        turned = gemm and view.attr("transB") == 1
        scaled = wide * (factor.reshape(-1, 1) if turned else factor.reshape(1, -1))
        beta = view.attr("beta") if gemm else 1.0
        added = (np.asarray(offset, np.float64).reshape(-1) * beta * factor + shift).astype(kind)
        added = np.broadcast_to(added, (columns,))
        new_weights = scaled.astype(kind)
    if not (far_from_overflow(new_weights) and np.all(np.isfinite(added))):
        return rw.reject("scaled_result", "the new weights are not finite, or so large that sums overflow")
    operands: list[ir.Value | None] = [product.inputs[0], weight]
    if not np.all(factor == 1):
        operands[1] = rw.constant(new_weights, weight.name or "weight", node)
    if bias is not None or shifts:
        name = bias.name if bias is not None and bias.name else f"{weight.name}_bias"
        operands.append(rw.constant(np.ascontiguousarray(added), name, node))
    kept = [attr for name, attr in product.attributes.items() if name != "beta"]
    new = rw.op("Gemm" if len(operands) == 3 else product.op_type, *operands, at=node, attributes=kept)
    inherit(new, product)
    rw.replace(node, new.outputs[0])
    return True


def _foldable(weight: ir.Value | None, result: ir.Value, rw: Rewriter, name: str) -> bool:
    tensor = constant_tensor(weight)
    if weight is None or tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) < 2:
        return False
    if is_shared(weight, tensor):
        return rw.reject(name, "the weights are needed elsewhere")
    node = result.producer()
    return result.dtype == tensor.dtype and node is not None and not is_parameterized(node)


def _depth(node: ir.Node, tensor: ir.TensorProtocol, rw: Rewriter) -> int | None:
    """How many channels of its operand the weights take."""
    shape = tensor.shape.numpy()
    if is_parameterized(node):
        return None
    if node.op_type == "Conv":
        return shape[1] * rw.view(node).attr("group")
    if len(shape) != 2:
        return None
    return shape[1] if node.op_type == "Gemm" and rw.view(node).attr("transB") == 1 else shape[0]


def _scaled_rows(node: ir.Node, weight: np.ndarray, factor: np.ndarray, rw: Rewriter) -> np.ndarray:
    """The weights with what meets each channel of the operand scaled."""
    if node.op_type == "Conv":
        group = rw.view(node).attr("group")
        grouped = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
        tail = (1,) * (weight.ndim - 2)
        return (grouped * factor.reshape(group, 1, -1, *tail)).reshape(weight.shape)
    turned = node.op_type == "Gemm" and rw.view(node).attr("transB") == 1
    return weight * (factor.reshape(1, -1) if turned else factor.reshape(-1, 1))


RULES = rules_in(globals())
