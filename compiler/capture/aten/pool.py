"""Pooling windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Emitter, val

from .convolution import per_dimension
from .registry import is_used, rule

aten = torch.ops.aten
Node = torch.fx.Node


def _max_pool(rank: int) -> Any:
    def apply(
        e: Emitter,
        node: Node,
        x: Node,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> list[ir.Value | None]:
        pads = per_dimension(padding, rank)
        attributes: dict[str, Any] = {
            "kernel_shape": per_dimension(kernel, rank),
            "strides": per_dimension(stride or kernel, rank),
            "pads": pads + pads,
            "dilations": per_dimension(dilation, rank),
            "ceil_mode": int(ceil_mode),
        }
        batched = val(x).dim() == rank + 2
        value = e.tensor(x) if batched else e.op("Unsqueeze", e.tensor(x), e.ints([0]))
        if not is_used(node, 1):
            pooled = e.op("MaxPool", value, **attributes)
            return [pooled if batched else e.op("Squeeze", pooled, e.ints([0])), None]
        pooled, indices = e.op("MaxPool", value, outputs=2, **attributes)
        indices = _per_plane(e, node, indices, val(x), rank)
        if batched:
            return [pooled, indices]
        return [e.op("Squeeze", v, e.ints([0])) for v in (pooled, indices)]

    return apply


def _per_plane(e: Emitter, node: Node, indices: ir.Value, seen: torch.Tensor, rank: int) -> ir.Value:
    """ONNX counts from the start of the tensor, torch from the start of each plane."""
    plane = 1
    for size in seen.shape[-rank:]:
        if not isinstance(size, int):
            raise e.refuse("indices of a pool over a symbolic size; use return_indices=False", node)
        plane *= size
    return e.op("Mod", indices, e.scalar(plane, torch.int64))


rule(aten.max_pool2d_with_indices.default)(_max_pool(2))
rule(aten.max_pool3d_with_indices.default)(_max_pool(3))


def _avg_pool(rank: int) -> Any:
    def apply(
        e: Emitter,
        node: Node,
        x: Node,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> ir.Value:
        window, pads = per_dimension(kernel, rank), per_dimension(padding, rank)
        batched = val(x).dim() == rank + 2
        value = e.tensor(x) if batched else e.op("Unsqueeze", e.tensor(x), e.ints([0]))
        pooled = e.op(
            "AveragePool",
            value,
            kernel_shape=window,
            strides=per_dimension(stride or kernel, rank),
            pads=pads + pads,
            ceil_mode=int(ceil_mode),
            count_include_pad=int(count_include_pad or divisor_override is not None),
        )
        if divisor_override is not None:
            if ceil_mode:
                raise e.refuse(
                    "divisor_override with ceil_mode has no ONNX form; pad the input instead of ceil_mode", node
                )
            pooled = e.op("Mul", pooled, e.scalar(float(np.prod(window)) / divisor_override, val(node).dtype))
        return pooled if batched else e.op("Squeeze", pooled, e.ints([0]))

    return apply


rule(aten.avg_pool1d.default)(_avg_pool(1))
rule(aten.avg_pool2d.default)(_avg_pool(2))
rule(aten.avg_pool3d.default)(_avg_pool(3))


def _adaptive(kind: str, rank: int) -> Any:
    def apply(e: Emitter, node: Node, x: Node, sizes: Sequence[int]) -> Any:
        spatial, wanted = list(val(x).shape[-rank:]), per_dimension(sizes, rank)
        if any(not isinstance(s, int) for s in spatial):
            raise e.refuse("an adaptive pool over a symbolic size; use mean(), amax() or a fixed size", node)
        if all(s % w == 0 for s, w in zip(spatial, wanted)):
            kernel = [s // w for s, w in zip(spatial, wanted)]
            return (_max_pool if kind == "max" else _avg_pool)(rank)(e, node, x, kernel, kernel)
        if kind == "max":
            return _uneven_maximum(e, node, x, spatial, wanted)
        return _uneven_average(e, x, spatial, wanted, val(node).dtype)

    return apply


def _uneven_maximum(e: Emitter, node: Node, x: Node, spatial: list[int], wanted: list[int]) -> list[ir.Value]:
    """Windows of unequal length: each is gathered from its plane, its last element repeated up to the longest."""
    rank = len(spatial)
    windows = torch.zeros([1] * 2 * rank, dtype=torch.int64)
    for i, (size, bins) in enumerate(zip(spatial, wanted)):
        starts = [b * size // bins for b in range(bins)]
        stops = [-(-(b + 1) * size // bins) for b in range(bins)]
        longest = max(stop - start for start, stop in zip(starts, stops))
        rows = [[min(start + k, stop - 1) for k in range(longest)] for start, stop in zip(starts, stops)]
        extents = [1] * 2 * rank
        extents[i], extents[rank + i] = bins, longest
        windows = windows * size + torch.tensor(rows).reshape(extents)
    windows = windows.flatten(rank).flatten(0, rank - 1)  # [bins, elements of a window]
    lead = list(val(x).shape[:-rank])
    planes = e.op("Reshape", e.tensor(x), e.shape([*lead, math.prod(spatial)]))
    gathered = e.op("Gather", planes, e.torch_constant(windows, "windows"), axis=len(lead))
    shape = e.shape([*lead, *wanted], "pooled")
    pooled = e.op("Reshape", e.op("ReduceMax", gathered, e.ints([-1]), keepdims=0), shape)
    best = e.op("ArgMax", gathered, axis=-1, keepdims=1)
    table = e.torch_constant(windows.expand([*[1] * len(lead), *windows.shape]), "places")
    table = e.op("Expand", table, e.shape([*lead, *windows.shape], "every_plane"))
    return [pooled, e.op("Reshape", e.op("GatherElements", table, best, axis=-1), shape)]


def _uneven_average(e: Emitter, x: Node, spatial: list[int], wanted: list[int], dtype: torch.dtype) -> ir.Value:
    """Windows of unequal length: one matrix product per spatial dimension, that dimension moved last."""
    rank, value = val(x).dim(), e.tensor(x)
    for i, (size, bins) in enumerate(zip(spatial, wanted)):
        at = rank - len(spatial) + i
        perm = list(range(rank))
        perm[at], perm[-1] = perm[-1], perm[at]
        moved = value if at == rank - 1 else e.op("Transpose", value, perm=perm)
        product = e.op("MatMul", moved, e.torch_constant(_average_matrix(size, bins).to(dtype), "windows"))
        value = product if at == rank - 1 else e.op("Transpose", product, perm=perm)
    return value


def _average_matrix(size: int, bins: int) -> torch.Tensor:
    matrix = torch.zeros(size, bins, dtype=torch.float64)
    for b in range(bins):
        start, stop = b * size // bins, -(-(b + 1) * size // bins)
        matrix[start:stop, b] = 1 / (stop - start)
    return matrix


rule(aten._adaptive_avg_pool2d.default)(_adaptive("avg", 2))
rule(aten._adaptive_avg_pool3d.default)(_adaptive("avg", 3))
rule(aten.adaptive_max_pool2d.default)(_adaptive("max", 2))
rule(aten.adaptive_max_pool3d.default)(_adaptive("max", 3))
