"""Quantization that is trained through: rounded to steps of a scale, with the gradient of what was in range."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def per_tensor(x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    """(x as its quantized form says it, where it was in range), with torch's own float32 scale, inverse and product."""
    scale = torch.as_tensor(scale, dtype=torch.float32)
    step = torch.round(x * scale.reciprocal().to(x.dtype) + zero_point)
    inside = (step >= quant_min) & (step <= quant_max)
    level = step.clamp(quant_min, quant_max) - zero_point
    return (level.float() * scale).to(x.dtype), inside


def per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """The same with a scale for each place of a dimension."""
    shape = [-1 if d == axis % x.dim() else 1 for d in range(x.dim())]
    return per_tensor(x, scale.view(shape), zero_point.to(x.dtype).view(shape), quant_min, quant_max)


def masked(grad: Tensor, mask: Tensor) -> Tensor:
    """The gradient of both."""
    return torch.where(mask, grad, 0.0)


def switched(
    x: Tensor, scale: Tensor, zero_point: Tensor, is_on: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """With tensors for its numbers, and one that says whether it is done."""
    y, inside = per_tensor(x, scale, zero_point.to(x.dtype), quant_min, quant_max)
    return torch.where(is_on > 0, y, x), inside | (is_on <= 0)


DECOMPOSITIONS: dict[Any, Any] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: per_tensor,
    aten.fake_quantize_per_channel_affine_cachemask.default: per_channel,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: switched,
    aten.fake_quantize_per_tensor_affine_cachemask_backward.default: masked,
    aten.fake_quantize_per_channel_affine_cachemask_backward.default: masked,
}
