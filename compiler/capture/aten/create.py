"""New tensors: filled, counted, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.dtypes import onnx_dtype
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


def _filled(e: Emitter, shape: ir.Value, number: Arg, dtype: torch.dtype) -> ir.Value:
    if isinstance(number, Node):
        return e.op("Expand", e.tensor(number, dtype), shape)
    fill = ir.Tensor(np.asarray([number]).astype(onnx_dtype(dtype).numpy()))
    return e.op("ConstantOfShape", shape, value=fill)


@rule(aten.full.default)
def full(e: Emitter, node: Node, sizes: Sequence[Arg], number: Arg, **_: Any) -> ir.Value:
    return _filled(e, e.shape(sizes), number, val(node).dtype)


@rule(aten.zeros.default, aten.empty.memory_format, aten.empty_strided.default, aten.empty_permuted.default)
def zeros(e: Emitter, node: Node, sizes: Sequence[Arg], *_: Any, **__: Any) -> ir.Value:
    """Uninitialised memory has no value to agree on; zeros are one."""
    return _filled(e, e.shape(list(val(node).shape)), 0, val(node).dtype)


@rule(aten.ones.default)
def ones(e: Emitter, node: Node, sizes: Sequence[Arg], **_: Any) -> ir.Value:
    return _filled(e, e.shape(sizes), 1, val(node).dtype)


@rule(aten.zeros_like.default, aten.empty_like.default, aten.new_zeros.default, aten.new_empty.default)
@rule(aten.new_empty_strided.default, aten._new_zeros_with_same_feature_meta.default)
def zeros_like(e: Emitter, node: Node, x: Arg, *_: Any, **__: Any) -> ir.Value:
    return _filled(e, e.shape(list(val(node).shape)), 0, val(node).dtype)


@rule(aten.ones_like.default, aten.new_ones.default)
def ones_like(e: Emitter, node: Node, x: Arg, *_: Any, **__: Any) -> ir.Value:
    return _filled(e, e.shape(list(val(node).shape)), 1, val(node).dtype)


@rule(aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor)
def full_like(e: Emitter, node: Node, x: Arg, number: Arg, **_: Any) -> ir.Value:
    return _filled(e, e.shape(list(val(node).shape)), number, val(node).dtype)


@rule(aten.new_full.default)
def new_full(e: Emitter, node: Node, x: Arg, sizes: Sequence[Arg], number: Arg, **_: Any) -> ir.Value:
    return _filled(e, e.shape(sizes), number, val(node).dtype)


@rule(aten.scalar_tensor.default)
def scalar_tensor(e: Emitter, node: Node, number: Arg, **_: Any) -> ir.Value:
    return e.tensor(number, val(node).dtype)


@rule(aten.arange.start_step)
def arange_step(e: Emitter, node: Node, start: Arg, end: Arg, step: Arg = 1, **_: Any) -> ir.Value:
    dtype = val(node).dtype
    return e.op("Range", e.tensor(start, dtype), e.tensor(end, dtype), e.tensor(step, dtype))


@rule(aten.arange.start)
def arange_start(e: Emitter, node: Node, start: Arg, end: Arg, **_: Any) -> ir.Value:
    return arange_step(e, node, start, end)


@rule(aten.arange.default)
def arange(e: Emitter, node: Node, end: Arg, **_: Any) -> ir.Value:
    return arange_step(e, node, 0, end)


@rule(aten.eye.default, aten.eye.m)
def eye(e: Emitter, node: Node, *sizes: Any, **_: Any) -> ir.Value:
    dtype = val(node).dtype
    return e.op("EyeLike", _filled(e, e.shape(list(val(node).shape)), 0, dtype), dtype=onnx_dtype(dtype))


@rule(aten.embedding.default)
def embedding(e: Emitter, node: Node, weight: Arg, indices: Arg, *_: Any) -> ir.Value:
    return e.op("Gather", e.tensor(weight), e.tensor(indices), axis=0)
