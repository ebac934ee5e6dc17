"""Batch, layer, group and RMS normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.dtypes import onnx_dtype
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .reduce import variance
from .registry import is_used, rule

aten = torch.ops.aten
Node = torch.fx.Node


def _filled(e: Emitter, shape: Sequence[int], number: float, dtype: torch.dtype, label: str) -> ir.Value:
    return e.constant(np.full(tuple(shape), number, dtype=onnx_dtype(dtype).numpy()), label)


def _per_channel(e: Emitter, arg: Arg, x: Node, number: float, label: str) -> ir.Value:
    channels = val(x).shape[1]
    return _filled(e, [channels], number, val(x).dtype, label) if arg is None else e.tensor(arg, val(x).dtype)


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    e: Emitter, node: Node, x: Node, weight: Arg, bias: Arg, mean: Node, var: Node, momentum: float, eps: float
) -> list[ir.Value | None]:
    inputs = [_per_channel(e, weight, x, 1, "scale"), _per_channel(e, bias, x, 0, "bias")]
    statistics = [e.tensor(mean, val(x).dtype), e.tensor(var, val(x).dtype)]
    return [e.op("BatchNormalization", e.tensor(x), *inputs, *statistics, epsilon=float(eps)), None, None]


@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def batch_norm(
    e: Emitter,
    node: Node,
    x: Node,
    weight: Arg,
    bias: Arg,
    mean: Arg,
    var: Arg,
    training: bool,
    momentum: float,
    eps: float,
) -> list[ir.Value | None]:
    if not training:
        return batch_norm_inference(e, node, x, weight, bias, mean, var, momentum, eps)
    return batch_norm_of_batch(e, node, x, weight, bias, True, momentum, eps)


@rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_of_batch(
    e: Emitter, node: Node, x: Node, weight: Arg, bias: Arg, training: bool, momentum: float, eps: float
) -> list[ir.Value | None]:
    """Statistics of the batch itself (track_running_stats=False, and what instance norm becomes)."""
    rank, dtype = val(x).dim(), val(x).dtype
    var, mean = variance(e, node, x, [d for d in range(rank) if d != 1], 0, True)
    deviation = e.op("Sqrt", e.op("Add", var, e.scalar(eps, dtype)))
    value = e.op("Div", e.op("Sub", e.tensor(x), mean), deviation)
    saved: list[ir.Value | None] = [None, None]
    if is_used(node, 1) or is_used(node, 2):  # read by the backward pass
        unit = e.op("Reciprocal", deviation)
        saved = [e.op("Reshape", v, e.ints([-1], "shape")) for v in (mean, unit)]
    return [_scale_and_shift(e, value, weight, bias, rank, dtype), *saved]


def _scale_and_shift(e: Emitter, value: ir.Value, weight: Arg, bias: Arg, rank: int, dtype: torch.dtype) -> ir.Value:
    """Per channel (dimension 1)."""
    axes = list(range(1, rank - 1))
    for op_type, arg in (("Mul", weight), ("Add", bias)):
        if arg is not None:
            factor = e.tensor(arg, dtype)
            value = e.op(op_type, value, e.op("Unsqueeze", factor, e.ints(axes)) if axes else factor)
    return value


@rule(aten.native_layer_norm.default)
def layer_norm(
    e: Emitter, node: Node, x: Node, shape: Sequence[int], weight: Arg, bias: Arg, eps: float
) -> list[ir.Value | None]:
    dtype = val(x).dtype
    if dtype == torch.float64:
        return _layer_norm_of_doubles(e, x, shape, weight, bias, eps)
    scale = _filled(e, shape, 1, dtype, "scale") if weight is None else e.tensor(weight, dtype)
    outputs = 3 if is_used(node, 1) or is_used(node, 2) else 1
    made = e.op(
        "LayerNormalization",
        e.tensor(x),
        scale,
        e.optional(bias, dtype),
        axis=-len(shape),
        epsilon=float(eps),
        outputs=outputs,
    )
    return made if outputs == 3 else [made, None, None]


def _layer_norm_of_doubles(
    e: Emitter, x: Node, shape: Sequence[int], weight: Arg, bias: Arg, eps: float
) -> list[ir.Value | None]:
    """Written out: LayerNormalization computes mean and deviation in float32, whatever the type."""
    axes, dtype = e.ints([-1 - i for i in range(len(shape))]), torch.float64
    mean = e.op("ReduceMean", e.tensor(x), axes, keepdims=1)
    centred = e.op("Sub", e.tensor(x), mean)
    variance = e.op("ReduceMean", e.op("Mul", centred, centred), axes, keepdims=1)
    unit = e.op("Reciprocal", e.op("Sqrt", e.op("Add", variance, e.scalar(eps, dtype))))
    value = e.op("Mul", centred, unit)
    for op_type, arg in (("Mul", weight), ("Add", bias)):
        value = value if arg is None else e.op(op_type, value, e.tensor(arg, dtype))
    return [value, mean, unit]


@rule(aten.native_group_norm.default)
def group_norm(
    e: Emitter, node: Node, x: Node, weight: Arg, bias: Arg, n: Arg, c: Arg, hw: Arg, groups: int, eps: float
) -> list[ir.Value | None]:
    """Groups become the channels of an InstanceNormalization. ONNX's own GroupNormalization is from opset 21."""
    dtype = val(x).dtype
    grouped = e.op("Reshape", e.tensor(x), e.ints([0, groups, -1], "shape"))
    unit = _filled(e, [groups], 1, dtype, "unit"), _filled(e, [groups], 0, dtype, "zero")
    normal = e.op("InstanceNormalization", grouped, *unit, epsilon=float(eps))
    value = e.op("Reshape", normal, e.shape(list(val(x).shape)))
    saved = _group_statistics(e, grouped, eps, dtype) if is_used(node, 1) or is_used(node, 2) else [None, None]
    return [_scale_and_shift(e, value, weight, bias, val(x).dim(), dtype), *saved]


def _group_statistics(e: Emitter, grouped: ir.Value, eps: float, dtype: torch.dtype) -> list[ir.Value | None]:
    """(mean, 1 / deviation) of each group of each sample [N, groups], which the backward pass reads."""
    mean = e.op("ReduceMean", grouped, e.ints([-1]), keepdims=1)
    centred = e.op("Sub", grouped, mean)
    variance = e.op("ReduceMean", e.op("Mul", centred, centred), e.ints([-1]), keepdims=0)
    unit = e.op("Reciprocal", e.op("Sqrt", e.op("Add", variance, e.scalar(eps, dtype))))
    return [e.op("Squeeze", mean, e.ints([-1])), unit]


@rule(aten._fused_rms_norm.default)
def rms_norm(e: Emitter, node: Node, x: Node, shape: Sequence[int], weight: Arg, eps: Any) -> list[ir.Value | None]:
    dtype = val(x).dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    value = e.tensor(x, wide)
    epsilon = torch.finfo(wide).eps if eps is None else eps
    squares = e.op("ReduceMean", e.op("Mul", value, value), e.ints([-1 - i for i in range(len(shape))]), keepdims=1)
    normal = e.op("Div", value, e.op("Sqrt", e.op("Add", squares, e.scalar(epsilon, wide))))
    if weight is not None:
        normal = e.op("Mul", normal, e.tensor(weight, wide))
    return [normal if wide == dtype else e.cast(normal, dtype), None]
