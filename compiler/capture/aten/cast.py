"""Casts and copies."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from pfvm.compiler.capture.emit import Arg, Emitter, dtype_of, sizes, val

from .registry import rule

aten, prims = torch.ops.aten, torch.ops.prims
Node = torch.fx.Node


@rule(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(e: Emitter, node: Node, x: Arg, *_: Any, **__: Any) -> ir.Value:
    return e.op("Identity", e.tensor(x)) if dtype_of(x) == val(node).dtype else e.cast(e.tensor(x), val(node).dtype)


@rule(aten.clone.default, prims.copy_strided.default)
def clone(e: Emitter, node: Node, x: Arg, *_: Any, **__: Any) -> ir.Value:
    """Strides and memory formats, which torch's own forms of lerp ask for, say nothing of numbers."""
    return e.op("Identity", e.tensor(x))


@rule(aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
def alias(e: Emitter, node: Node, x: Arg) -> ir.Value:
    """The same tensor under another handle: no op runs in eager torch either."""
    return e.tensor(x)


@rule(aten.copy.default)
def copy(e: Emitter, node: Node, x: Arg, source: Arg, *_: Any) -> ir.Value:
    value = e.tensor(source, val(node).dtype)
    if sizes(val(source).shape) != sizes(val(node).shape):
        return e.op("Expand", value, e.shape(list(val(node).shape)))
    return value if dtype_of(source) != val(node).dtype else e.op("Identity", value)
