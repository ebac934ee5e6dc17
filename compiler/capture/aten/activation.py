"""Activations that ATen keeps whole."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


@rule(aten.gelu.default)
def gelu(e: Emitter, node: Node, x: Arg, approximate: str = "none") -> ir.Value:
    if approximate == "tanh" and val(node).dtype == torch.float64:
        return _tanh_gelu_of_doubles(e, e.tensor(x))
    return e.op("Gelu", e.tensor(x), approximate=None if approximate == "none" else approximate)


def _tanh_gelu_of_doubles(e: Emitter, x: ir.Value) -> ir.Value:
    """Written out: the constants of Gelu's own definition are float32."""
    number = functools.partial(e.scalar, dtype=torch.float64)
    cube = e.op("Mul", e.op("Mul", x, x), x)
    inner = e.op("Add", x, e.op("Mul", cube, number(0.044715)))
    tanh = e.op("Tanh", e.op("Mul", inner, number(math.sqrt(2 / math.pi))))
    return e.op("Mul", e.op("Mul", x, number(0.5)), e.op("Add", tanh, number(1.0)))


@rule(aten.silu.default)
def silu(e: Emitter, node: Node, x: Arg) -> ir.Value:
    return e.op("Mul", e.tensor(x), e.op("Sigmoid", e.tensor(x)))


def is_attribute(number: Any, dtype: torch.dtype) -> bool:
    """Whether an attribute, which is a float32, holds a number as exactly as this dtype does."""
    return dtype != torch.float64 or float(np.float32(number)) == number


@rule(aten.hardswish.default)
def hardswish(e: Emitter, node: Node, x: Arg) -> ir.Value:
    if val(node).dtype == torch.float64:  # ONNX's own definition has a float32 sixth
        return e.op("Mul", e.tensor(x), hardsigmoid(e, node, x))
    return e.op("HardSwish", e.tensor(x))


@rule(aten.hardsigmoid.default)
def hardsigmoid(e: Emitter, node: Node, x: Arg) -> ir.Value:
    if not is_attribute(1 / 6, val(node).dtype):
        line = e.op("Add", e.op("Div", e.tensor(x), e.scalar(6, torch.float64)), e.scalar(0.5, torch.float64))
        return e.op("Clip", line, e.scalar(0, torch.float64), e.scalar(1, torch.float64))
    return e.op("HardSigmoid", e.tensor(x), alpha=1 / 6, beta=0.5)


@rule(aten.leaky_relu.default)
def leaky_relu(e: Emitter, node: Node, x: Arg, slope: float = 0.01) -> ir.Value:
    dtype = val(node).dtype
    if is_attribute(slope, dtype):
        return e.op("LeakyRelu", e.tensor(x), alpha=float(slope))
    value = e.tensor(x)
    return e.op("Where", e.op("Greater", value, e.scalar(0, dtype)), value, e.op("Mul", value, e.scalar(slope, dtype)))


@rule(aten._prelu_kernel.default)
def prelu(e: Emitter, node: Node, x: Arg, weight: Arg) -> ir.Value:
    return e.op("PRelu", e.tensor(x), e.tensor(weight))


@rule(aten.elu.default)
def elu(e: Emitter, node: Node, x: Arg, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> ir.Value:
    dtype = val(node).dtype
    if input_scale != 1 or not is_attribute(alpha, dtype):  # of celu, only the negative side is scaled
        value = e.tensor(x)
        scaled = value if input_scale == 1 else e.op("Mul", value, e.scalar(input_scale, dtype))
        negative = e.op("Sub", e.op("Exp", scaled), e.scalar(1, dtype))
        negative = e.op("Mul", negative, e.scalar(alpha * scale, dtype))
        positive = value if scale == 1 else e.op("Mul", value, e.scalar(scale, dtype))
        return e.op("Where", e.op("Greater", value, e.scalar(0, dtype)), positive, negative)
    result = e.op("Elu", e.tensor(x), alpha=float(alpha))
    return result if scale == 1 else e.op("Mul", result, e.scalar(scale, dtype))


@rule(aten.softplus.default)
def softplus(e: Emitter, node: Node, x: Arg, beta: float = 1, threshold: float = 20) -> ir.Value:
    dtype = val(node).dtype
    value = e.tensor(x)
    scaled = value if beta == 1 else e.op("Mul", value, e.scalar(beta, dtype))
    soft = e.op("Softplus", scaled)
    soft = soft if beta == 1 else e.op("Div", soft, e.scalar(beta, dtype))
    return e.op("Where", e.op("Greater", scaled, e.scalar(threshold, dtype)), value, soft)


@rule(aten.threshold.default)
def threshold(e: Emitter, node: Node, x: Arg, limit: Arg, value: Arg) -> ir.Value:
    dtype = val(node).dtype
    above = e.op("Greater", e.tensor(x), e.tensor(limit, dtype))
    return e.op("Where", above, e.tensor(x), e.tensor(value, dtype))
