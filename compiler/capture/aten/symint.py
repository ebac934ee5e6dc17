"""Sizes, step counts and hyperparameters: arithmetic on Python numbers, as 0-d int64 and float64 values."""

from __future__ import annotations

import math
import operator
from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, dtype_of

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


@rule(aten.sym_size.int)
def sym_size(e: Emitter, node: Node, x: Arg, dim: int) -> ir.Value:
    return e.op("Gather", e.op("Shape", e.tensor(x)), e.scalar(dim, torch.int64, "index"), axis=0)


@rule(aten.sym_numel.default)
def sym_numel(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Size", e.tensor(x))


def _binary(op_type: str) -> Any:
    def apply(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
        dtype = dtype_of(node)
        return e.op(op_type, e.tensor(x, dtype), e.tensor(y, dtype))

    return apply


rule(operator.add)(_binary("Add"))
rule(operator.sub)(_binary("Sub"))
rule(operator.mul)(_binary("Mul"))
rule(operator.mod)(_binary("Mod"))
rule(operator.truediv)(_binary("Div"))
rule(torch.sym_max)(_binary("Max"))
rule(torch.sym_min)(_binary("Min"))


@rule(operator.floordiv)
def floordiv(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    """Floor, where ONNX truncates: subtract the remainder first."""
    a, b = e.tensor(x, torch.int64), e.tensor(y, torch.int64)
    return e.op("Div", e.op("Sub", a, e.op("Mod", a, b)), b)


@rule(operator.neg)
def neg(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Neg", e.tensor(x))


@rule(torch.sym_float)
def sym_float(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.cast(e.tensor(x), torch.float64)


@rule(math.floor, math.trunc, torch.sym_int)
def to_int(e: Emitter, node: Node, x: Arg) -> ir.Value:
    value = e.tensor(x)
    return e.cast(e.op("Floor", value) if node.target is math.floor else value, torch.int64)


@rule(aten._local_scalar_dense.default)
def local_scalar(e: Emitter, node: Node, x: Arg) -> ir.Value:
    """A 0-d tensor as a Python number: float64, as Python computes."""
    return e.op("Reshape", e.tensor(x, dtype_of(node)), e.ints([], "shape"))


@rule(aten.sym_constrain_range.default)
def constrained(e: Emitter, node: Node, x: Arg, **_: Any) -> ir.Value:
    """Known to the trace alone: what reads beside a dimension is refused by the operator that reads."""
    return e.tensor(x)


@rule(operator.pow)
def power(e: Emitter, node: Node, x: Arg, y: Arg) -> ir.Value:
    dtype = dtype_of(node)
    if y == 0.5:
        return e.op("Sqrt", e.tensor(x, dtype))
    return e.op("Pow", e.tensor(x, dtype), e.tensor(y, dtype))


@rule(torch.sym_sqrt)
def square_root(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Sqrt", e.tensor(x, torch.float64))


@rule(operator.abs)
def absolute(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Abs", e.tensor(x))
