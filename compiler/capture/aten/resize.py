"""Interpolation and sampling on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, val

from .registry import rule

aten = torch.ops.aten
Node = torch.fx.Node


def _resize(e: Emitter, node: Node, x: Node, scales: Sequence[float | None] | None, **attributes: Any) -> ir.Value:
    """By the user's factors, which torch then uses for the coordinates too; otherwise to the size the trace saw."""
    if scales and all(s is not None for s in scales):
        factors = e.constant(np.asarray([1.0, 1.0, *scales], dtype=np.float32), "scales")
        return e.op("Resize", e.tensor(x), None, factors, **attributes)
    return e.op("Resize", e.tensor(x), None, None, e.shape(list(val(node).shape), "sizes"), **attributes)


def _nearest(transform: str, rounding: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, sizes: Any, *scales: Any) -> ir.Value:
        return _resize(
            e,
            node,
            x,
            _factors(scales),
            mode="nearest",
            coordinate_transformation_mode=transform,
            nearest_mode=rounding,
        )

    return apply


def _factors(scales: Sequence[Any]) -> Sequence[float | None] | None:
    """The .vec overloads pass one list, the others one number per dimension."""
    if len(scales) == 1 and not isinstance(scales[0], (int, float)):
        return scales[0]
    return scales


def _smooth(mode: str) -> Any:
    def apply(e: Emitter, node: Node, x: Node, sizes: Any, align_corners: bool, *scales: Any) -> ir.Value:
        transform = "align_corners" if align_corners else "half_pixel"
        cubic = {"cubic_coeff_a": -0.75} if mode == "cubic" else {}
        return _resize(e, node, x, _factors(scales), mode=mode, coordinate_transformation_mode=transform, **cubic)

    return apply


for _rank in (1, 2, 3):
    for _overload in ("default", "vec"):
        rule(getattr(getattr(aten, f"upsample_nearest{_rank}d"), _overload))(_nearest("asymmetric", "floor"))
        rule(getattr(getattr(aten, f"_upsample_nearest_exact{_rank}d"), _overload))(
            _nearest("half_pixel", "round_prefer_ceil")
        )
for _packet, _mode in (
    ("upsample_linear1d", "linear"),
    ("upsample_bilinear2d", "linear"),
    ("upsample_trilinear3d", "linear"),
    ("upsample_bicubic2d", "cubic"),
):
    for _overload in ("default", "vec"):
        rule(getattr(getattr(aten, _packet), _overload))(_smooth(_mode))

_GRID_MODES = ("linear", "nearest", "cubic")
_GRID_PADDING = ("zeros", "border", "reflection")


@rule(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    e: Emitter, node: Node, x: Arg, grid: Arg, interpolation: int, padding: int, align_corners: bool
) -> ir.Value:
    return e.op(
        "GridSample",
        e.tensor(x),
        e.tensor(grid),
        mode=_GRID_MODES[interpolation],
        padding_mode=_GRID_PADDING[padding],
        align_corners=int(align_corners),
    )
