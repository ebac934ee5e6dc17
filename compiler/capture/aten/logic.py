"""Comparison, logic, and choice between values."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, dtype_of, val

from .registry import register, rule

aten = torch.ops.aten
Node = torch.fx.Node

_COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


def common_dtype(x: Arg, y: Arg) -> torch.dtype:
    """torch's type promotion over two tensors or Python numbers."""
    return torch.result_type(_example(x), _example(y))


def _example(arg: Arg) -> Any:
    """What stands for an argument in type promotion, which looks at dtype, rank and whether it is a Python number."""
    if not isinstance(arg, Node):
        return arg
    seen = val(arg)
    if isinstance(seen, torch.Tensor):
        return torch.empty((1,) * seen.dim(), dtype=seen.dtype, device="meta")
    return 1.0 if dtype_of(arg).is_floating_point else 1


def _compare(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        dtype = common_dtype(x, y)
        if dtype == torch.bool and op_type != "Equal":
            dtype = torch.int32  # ONNX orders numbers only
        return e.op(op_type, e.tensor(x, dtype), e.tensor(y, dtype))

    return apply


for _name, _op in _COMPARE.items():
    register(_compare(_op), getattr(aten, _name), "Tensor", "Scalar")


@rule(aten.ne.Tensor, aten.ne.Scalar)
def ne(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    return e.op("Not", _compare("Equal")(e, node, x, y))


def _logical(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        return e.op(op_type, e.tensor(x, torch.bool), e.tensor(y, torch.bool))

    return apply


for _name, _op in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}.items():
    register(_logical(_op), getattr(aten, _name), "default")


def _bitwise(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        dtype = val(node).dtype
        return e.op(op_type if dtype == torch.bool else f"Bitwise{op_type}", e.tensor(x, dtype), e.tensor(y, dtype))

    return apply


for _name, _op in {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor"}.items():
    register(_bitwise(_op), getattr(aten, _name), "Tensor", "Scalar")
for _name, _op in {"__and__": "And", "__or__": "Or", "__xor__": "Xor"}.items():
    register(_bitwise(_op), getattr(aten, _name), "Tensor", "Scalar")


@rule(aten.bitwise_not.default)
def bitwise_not(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Not" if val(node).dtype == torch.bool else "BitwiseNot", e.tensor(x))


def _float_test(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg) -> ir.Value:
        dtype = dtype_of(x)
        return e.op(op_type, e.tensor(x, dtype if dtype.is_floating_point else torch.float32))

    return apply


register(_float_test("IsNaN"), aten.isnan, "default")
register(_float_test("IsInf"), aten.isinf, "default")


# Choice and bounds


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(e: Emitter, node: Node, condition: Arg, x: Arg, y: Arg) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Where", e.tensor(condition, torch.bool), e.tensor(x, dtype), e.tensor(y, dtype))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(e: Emitter, node: Node, x: Arg, mask: Arg, value: Arg) -> ir.Value:
    return e.op("Where", e.tensor(mask), e.tensor(value, val(node).dtype), e.tensor(x))


@rule(aten.clamp.default, aten.hardtanh.default)
def clamp(e: Emitter, node: Node, x: Arg, low: Arg = None, high: Arg = None) -> ir.Value:
    if node.target is aten.hardtanh.default:
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    dtype = val(node).dtype
    return e.op("Clip", e.tensor(x, dtype), e.optional(low, dtype), e.optional(high, dtype))


@rule(aten.clamp_min.default)
def clamp_min(e: Emitter, node: Node, x: Arg, low: Arg) -> ir.Value:
    return clamp(e, node, x, low, None)


@rule(aten.clamp_max.default)
def clamp_max(e: Emitter, node: Node, x: Arg, high: Arg) -> ir.Value:
    return clamp(e, node, x, None, high)


@rule(aten.clamp.Tensor)
def clamp_tensor(e: Emitter, node: Node, x: Arg, low: Arg = None, high: Arg = None) -> ir.Value:
    dtype = val(node).dtype
    result = e.tensor(x, dtype)
    if low is not None:
        result = e.op("Max", result, e.tensor(low, dtype))
    return result if high is None else e.op("Min", result, e.tensor(high, dtype))
