"""fuse-pad: padding goes into the operator that reads it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from . import schema
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in
from .view import RUNTIME, is_parameterized

_ODD = ("ceil_mode", "storage_order")
"""Attributes of pools that must not be set."""


@dataclasses.dataclass(frozen=True)
class FusePad:
    """Padding with a constant goes into the Conv, AveragePool, MaxPool or Pad that reads it.

    before:  x ─ Pad(0) ─ Conv(W) ─ y     x ─ Pad(0) ─ AveragePool(count_include_pad) ─ z     x ─ Pad ─ Pad ─ w
    after:   x ─ Conv(W, pads) ──── y     x ─ AveragePool(pads, count_include_pad) ──── z     x ─ Pad ─────── w

    Spatial dims alone; zeros for Conv and AveragePool, −∞ for MaxPool; no window may lie in the padding alone. Exact.
    """

    name: ClassVar[str] = "fuse-pad"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Conv")
def padded_convolution(node: ir.Node, rw: Rewriter) -> bool:
    """Conv(Pad(x)) → Conv(x, pads)."""
    return _take(node, rw, "padded_convolution", 0.0, {})


@rule("AveragePool")
def padded_average(node: ir.Node, rw: Rewriter) -> bool:
    """AveragePool(Pad(x)) → AveragePool(x, pads), which counts what is padded."""
    view = rw.view(node)
    if view.opset < 7 or is_parameterized(node):
        return False
    if view.attr("count_include_pad") != 1 and any(view.attr("pads") or ()):
        return False
    return _take(node, rw, "padded_average", 0.0, {"count_include_pad": 1})


@rule("MaxPool")
def padded_maximum(node: ir.Node, rw: Rewriter) -> bool:
    """MaxPool(Pad(x, −∞)) → MaxPool(x, pads)."""
    view = rw.view(node)
    if view.used_outputs() != [0] or is_parameterized(node):
        return False
    if view.opset >= 10 and set(view.attr("dilations") or (1,)) != {1}:
        return False
    return _take(node, rw, "padded_maximum", -math.inf, {})


def _take(node: ir.Node, rw: Rewriter, name: str, filling: float, attributes: dict[str, int]) -> bool:
    """Add the spatial padding before the node to its own, if it is with `filling`."""
    pad, view = rw.producer(node.inputs[0], "Pad"), rw.view(node)
    if pad is None or pad.inputs[0] is None:
        return False
    amounts = _amounts(pad, rw)
    if amounts is None:
        return rw.reject(name, "the padding is not by a constant, of known amounts, at the ends of all axes")
    if view.attr("auto_pad") not in ("NOTSET", "VALID"):
        return rw.reject(name, "the operator pads by itself, by amounts that its input decides")
    if _filling(pad, rw) != filling:
        return rw.reject(name, f"the padding is not {filling:g}")
    rank = len(amounts) // 2
    if any(amounts[i] for i in (0, 1, rank, rank + 1)):
        return rw.reject(name, "batch or channels are padded")
    own = view.attr("pads")
    odd = any(schema.has_attribute("", node.op_type, view.opset, key) and view.attr(key) for key in _ODD)
    if own is RUNTIME or odd:
        return rw.reject(
            name, "its own padding is a parameter of the function, or it rounds sizes up, or stores indices by column"
        )
    if own is None or view.attr("auto_pad") == "VALID":
        own = (0,) * (2 * rank - 4)
    spatial = [a + b for a, b in zip(own, [*amounts[2:rank], *amounts[rank + 2 :]])]
    if node.op_type != "Conv" and not _reaches_data(view.attr("kernel_shape"), spatial):
        return rw.reject(name, "a window may lie in the padding alone")
    replaced: dict[str, Any] = {"pads": spatial, **attributes}
    kept = [attr for key, attr in node.attributes.items() if key not in ("auto_pad", *replaced)]
    new = rw.op(node.op_type, pad.inputs[0], *node.inputs[1:], at=node, attributes=kept, **replaced)
    rw.replace(node, new.outputs[0])
    return True


def _reaches_data(kernel: object, pads: Sequence[int]) -> bool:
    """Runtimes want pools to pad by less than the window."""
    if not isinstance(kernel, tuple):
        return False
    return all(before < size and after < size for size, before, after in zip(kernel, pads, pads[len(kernel) :]))


@rule("Pad")
def pad_of_pad(node: ir.Node, rw: Rewriter) -> bool:
    """Pad(Pad(x)) with the same constant → Pad(x)."""
    inner = rw.producer(node.inputs[0], "Pad")
    if inner is None:
        return False
    amounts, before, filling = _amounts(node, rw), _amounts(inner, rw), _filling(node, rw)
    if amounts is None or before is None or filling is None or filling != _filling(inner, rw):
        return rw.reject("pad_of_pad", "not both by the same constant, of known amounts, at the ends of all axes")
    rw.replace(node, _pad(node, inner.inputs[0], [a + b for a, b in zip(amounts, before)], rw).outputs[0])
    return True


def _pad(node: ir.Node, source: ir.Value | None, amounts: list[int], rw: Rewriter) -> ir.Node:
    """The node with other amounts."""
    name = "pads" if (rw.opset(node) or 0) >= 2 else "paddings"
    kept = [attr for key, attr in node.attributes.items() if key != name]
    params: dict[str, Any] = {name: amounts}
    filling = rw.view(node).at(2)
    operands = [source] if filling is None else [source, None, filling]
    return rw.op("Pad", *operands, at=node, attributes=kept, **params)


def _amounts(pad: ir.Node, rw: Rewriter) -> tuple[int, ...] | None:
    """What a Pad with a constant adds at the beginnings and ends of all axes, if that is known and removes nothing."""
    view = rw.view(pad)
    amounts = view.ints("pads" if view.opset >= 2 else "paddings")
    if not isinstance(amounts, tuple) or view.attr("mode") != "constant" or view.at(3) is not None:
        return None
    return amounts if min(amounts, default=0) >= 0 else None


def _filling(pad: ir.Node, rw: Rewriter) -> float | int | None:
    """The number that it adds; None where that is only known at run time."""
    view = rw.view(pad)
    filling = view.param("constant_value" if view.opset >= 11 else "value")
    if filling is RUNTIME:
        return None
    return 0.0 if filling is None else np.asarray(filling).reshape(()).item()


RULES = rules_in(globals())
