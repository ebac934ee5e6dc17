"""fuse-cast-reduce-sum: count or sum in a wider type as one node."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from . import fused_function, schema
from .rewriter import SEALED_DOMAIN, Rewriter, inherit
from .rules import apply_rules, rule, rules_in
from .view import RUNTIME

NAME = "ChainerCastReduceSum"


@dataclasses.dataclass(frozen=True)
class FuseCastReduceSum:
    """Cast followed by ReduceSum becomes one call of the local function pfvm::ChainerCastReduceSum.

    before:  mask ─ Cast(to=int64) ─ ReduceSum ─ n       after:  mask ─ ChainerCastReduceSum(to=int64) ─ n

    Only when nobody else reads the cast value, and outside model-local functions. The body of the function is Cast and
    ReduceSum themselves, in the form of the caller's opset.
    """

    name: ClassVar[str] = "fuse-cast-reduce-sum"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("ReduceSum")
def cast_reduce_sum(node: ir.Node, rw: Rewriter) -> bool:
    """ReduceSum(Cast(x)) → ChainerCastReduceSum(x)."""
    wide = node.inputs[0]
    cast = rw.producer(wide, "Cast")
    if cast is None or wide is None:
        return False
    if len(wide.uses()) > 1 or wide.is_graph_output() or wide.dtype == ir.DataType.STRING:
        return rw.reject("cast_reduce_sum", "the cast value is needed elsewhere")
    if rw.in_function(node) or cast.graph is not node.graph:
        return rw.reject("cast_reduce_sum", "not in the main graph or one of its bodies")
    opset = rw.opset(node)
    if opset is None or opset < 6 or set(cast.attributes) != {"to"}:  # before 6, `to` is a string
        return rw.reject("cast_reduce_sum", "Cast has a form that the function does not cover")
    view = rw.view(node)
    params = {name: view.attr(name) for name in _attributes(opset, node)}
    axes = view.at(1)
    if RUNTIME in params.values():
        return rw.reject("cast_reduce_sum", "an attribute is a parameter of the function")
    function = _function(opset, tuple(params), axes is not None)
    rw.add_function(function, node)
    fused = rw.op(
        function.name,
        *([cast.inputs[0]] if axes is None else [cast.inputs[0], axes]),
        at=node,
        domain=SEALED_DOMAIN,
        to=rw.view(cast).attr("to"),
        **params,
    )
    inherit(fused, cast)
    fused.outputs[0].type, fused.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    rw.replace(node, fused.outputs[0])
    return True


def _attributes(opset: int, node: ir.Node) -> list[str]:
    """Attributes of this form of ReduceSum; `axes` (attribute before opset 13) only where the node has it."""
    names = [
        name for name in ("keepdims", "noop_with_empty_axes") if schema.has_attribute("", "ReduceSum", opset, name)
    ]
    return [*names, "axes"] if "axes" in node.attributes else names


def _function(opset: int, parameters: tuple[str, ...], with_axes: bool) -> ir.Function:
    """The function for one form; forms that can meet in one model differ in name."""
    x = ir.Value(name="x")
    axes = ir.Value(name="axes")
    types = {"to": ir.AttributeType.INT, "axes": ir.AttributeType.INTS}
    cast = ir.Node("", "Cast", [x], [ir.RefAttr("to", "to", ir.AttributeType.INT)], name="cast")
    cast.outputs[0].name = "wide"
    total = ir.Node(
        "",
        "ReduceSum",
        [cast.outputs[0], axes] if with_axes else [cast.outputs[0]],
        [ir.RefAttr(name, name, types.get(name, ir.AttributeType.INT)) for name in parameters],
        name="reduce_sum",
    )
    total.outputs[0].name = "sum"
    suffix = "Axes" if with_axes or "axes" in parameters else ""
    return fused_function.build(
        f"{NAME}{suffix}",
        [x, axes] if with_axes else [x],
        [cast, total],
        ["to", *parameters],
        opset,
        "Cast, then ReduceSum, without a value in between.",
    )


RULES = rules_in(globals())
