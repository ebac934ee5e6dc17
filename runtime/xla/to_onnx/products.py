"""Matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .structure import pad
from .translate import NoOnnxForm, Translator, dtype_of, in_shape, lowers, out_shape, static


@lowers("dot_general")
def _dot_general(t: Translator, eqn: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    (cx, cy), (bx, by) = eqn.params["dimension_numbers"]
    sx, sy = in_shape(eqn, 0), in_shape(eqn, 1)
    fx = [i for i in range(len(sx)) if i not in (*cx, *bx)]
    fy = [i for i in range(len(sy)) if i not in (*cy, *by)]
    target = dtype_of(eqn.outvars[0].aval)
    x, y = t.b.cast(x, target), t.b.cast(y, target)
    batch = [sx[i] for i in bx]
    rows, inner, columns = ([s[i] for i in axes] for s, axes in ((sx, fx), (sx, cx), (sy, fy)))
    left = t.reshape(_moved(t, x, [*bx, *fx, *cx], sx), [*batch, _product(rows), _product(inner)])
    right = t.reshape(_moved(t, y, [*by, *cy, *fy], sy), [*batch, _product(inner), _product(columns)])
    return t.reshape(t.b.op("MatMul", left, right), [*batch, *rows, *columns])


def _moved(t: Translator, value: ir.Value, perm: Sequence[int], shape: Sequence[Any]) -> ir.Value:
    return t.b.transpose(value, [int(i) for i in perm])


def _product(sizes: Sequence[Any]) -> Any:
    return math.prod(sizes) if sizes else 1


@lowers("conv_general_dilated")
def _conv(t: Translator, eqn: Any, x: ir.Value, w: ir.Value) -> ir.Value:
    p, b = eqn.params, t.b
    numbers = p["dimension_numbers"]
    rank = len(numbers.lhs_spec) - 2
    x = b.transpose(x, numbers.lhs_spec)
    w = b.transpose(w, numbers.rhs_spec)
    shape = [in_shape(eqn, 0)[i] for i in numbers.lhs_spec]
    pads = [tuple(pair) for pair in p["padding"]]
    zero = b.like(0, x)
    if any(d != 1 for d in p["lhs_dilation"]) or any(side < 0 for pair in pads for side in pair):
        config = [(0, 0, 0)] * 2 + [(low, high, d - 1) for (low, high), d in zip(pads, p["lhs_dilation"])]
        x, pads = pad(t, x, zero, shape, config), [(0, 0)] * rank
    group = p["feature_group_count"]
    if p["batch_group_count"] > 1:
        if group > 1:
            raise NoOnnxForm("a convolution grouped by batch and by channel has no ONNX form")
        group = p["batch_group_count"]
        x = _batches_as_channels(t, x, group)
    y = b.op(
        "Conv", x, w, group=group, strides=list(p["window_strides"]), dilations=list(p["rhs_dilation"]),
        pads=[low for low, _ in pads] + [high for _, high in pads],
    )  # fmt: skip
    return b.transpose(y, np.argsort(numbers.out_spec).tolist())


def _batches_as_channels(t: Translator, x: ir.Value, group: int) -> ir.Value:
    """[G·N, C, …] → [N, G·C, …]."""
    b, rank = t.b, len(x.shape or ())
    spatial = b.op("Shape", x, start=2)
    apart = b.op("Reshape", x, b.op("Concat", b.ints(group, -1), b.op("Shape", x, start=1), axis=0))
    turned = b.transpose(apart, [1, 0, *range(2, rank + 1)])
    joined = b.op("Concat", b.op("Div", b.op("Shape", x, start=0, end=1), b.ints(group)), b.ints(-1), spatial, axis=0)
    return b.op("Reshape", turned, joined)


# ---- windows


def _framed(t: Translator, eqn: Any, x: ir.Value, index: int = 0) -> tuple[ir.Value, list[int], list[int]]:
    """The operand as [-1, 1, *windowed axes], the windowed axes, and the sizes of all axes in that order."""
    window = eqn.params["window_dimensions"]
    moving = [
        i for i, (n, s, (low, high)) in enumerate(
            zip(window, eqn.params["window_strides"], eqn.params["padding"])
        ) if n != 1 or s != 1 or low or high
    ]  # fmt: skip
    shape = list(in_shape(eqn, index))
    perm = [*(i for i in range(len(window)) if i not in moving), *moving]
    sizes = static([shape[i] for i in moving], eqn.primitive.name)
    planes = t.b.op("Reshape", t.b.transpose(x, perm), t.b.ints(-1, 1, *sizes))
    return planes, moving, perm


def _unframed(t: Translator, planes: ir.Value, perm: list[int], shape: Sequence[Any]) -> ir.Value:
    whole = t.b.op("Reshape", planes, t.dims.reshape_target([shape[i] for i in perm]))
    return t.b.transpose(whole, np.argsort(perm).tolist())


def _window(eqn: Any, moving: list[int]) -> dict[str, Any]:
    p = eqn.params
    given: dict[str, Any] = {"strides": [p["window_strides"][i] for i in moving]}
    given["pads"] = [p["padding"][i][0] for i in moving] + [p["padding"][i][1] for i in moving]
    if any(d != 1 for d in p.get("base_dilation", ())):
        raise NoOnnxForm(f"{eqn.primitive.name} of a dilated operand has no ONNX form")
    if any(d != 1 for d in p.get("window_dilation", ())):
        given["dilations"] = [p["window_dilation"][i] for i in moving]
    return given


@lowers("reduce_window_sum")
def _window_sum(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    planes, moving, perm = _framed(t, eqn, x)
    if not moving:
        return t.b.op("Identity", x)
    kernel = [eqn.params["window_dimensions"][i] for i in moving]
    ones = t.b.constant(np.ones((1, 1, *kernel), eqn.invars[0].aval.dtype))
    return _unframed(t, t.b.op("Conv", planes, ones, **_window(eqn, moving)), perm, out_shape(eqn))


@lowers("reduce_window_max", "reduce_window_min")
def _window_max(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    smallest = eqn.primitive.name == "reduce_window_min"
    planes, moving, perm = _framed(t, eqn, t.b.op("Neg", x) if smallest else x)
    if not moving:
        return t.b.op("Identity", x)
    kernel = [eqn.params["window_dimensions"][i] for i in moving]
    found = _unframed(t, t.b.op("MaxPool", planes, kernel_shape=kernel, **_window(eqn, moving)), perm, out_shape(eqn))
    return t.b.op("Neg", found) if smallest else found


@lowers("select_and_scatter_add")
def _scatter_to_maxima(t: Translator, eqn: Any, source: ir.Value, x: ir.Value) -> ir.Value:
    """Each window's value goes to its maximum (minimum): where MaxPool's indices point."""
    b, p = t.b, eqn.params
    operand = b.op("Neg", x) if p["select_prim"].name in ("le", "lt") else x
    planes, moving, perm = _framed(t, eqn, operand, 1)
    kernel = [p["window_dimensions"][i] for i in moving]
    _, where = b.ops(2, "MaxPool", planes, kernel_shape=kernel, **_window(eqn, moving))
    flat = b.fill(b.op("Reshape", b.op("Size", x), b.ints(1)), 0, source)
    one = b.ints(-1)
    values = b.op("Reshape", b.transpose(source, perm), one)
    spread = b.op("ScatterElements", flat, b.op("Reshape", where, one), values, reduction="add")
    return _unframed(t, spread, perm, in_shape(eqn, 1))
