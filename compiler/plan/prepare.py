"""What can be planned: every value of fixed shape and known type, no branches or loops, no calls without a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import InputError, UnsupportedOpError, describe_node, did_you_mean
from pfvm.passes.dims import static_shape
from pfvm.passes.effects import Effect, bodies
from pfvm.passes.rewriter import Rewriter

from .functions import mark_functions


def prepare(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """The model with fixed shapes everywhere, as a new model.

    shapes: input name → its shape, for inputs whose shape is open.
    Raises InputError for a shape that does not fit, UnsupportedOpError naming the node for what cannot be planned.
    """
    working = model.clone()
    _fix(working, shapes)
    mark_functions(working)
    rewriter = Rewriter(working, ShapeInference(working))
    rewriter.shapes.infer_model()
    _check(working, rewriter)
    return working


def _fix(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    inputs = {value.name: value for value in model.graph.inputs}
    for name, shape in shapes.items():
        if name not in inputs:
            raise InputError(f"--shape {name}: the model has no such input{did_you_mean(name, map(str, inputs))}")
        value = inputs[name]
        if value.shape is not None:
            fits = len(value.shape) == len(shape) and all(
                not isinstance(dim, int) or dim == size for dim, size in zip(value.shape, shape)
            )
            if not fits:
                raise InputError(f"--shape {name}={','.join(map(str, shape))}: the model says {value.shape}")
        value.shape = ir.Shape(shape)


def _check(model: ir.Model, rewriter: Rewriter) -> None:
    for value in model.graph.inputs:
        if static_shape(value) is None:
            raise InputError(
                f"input {value.name!r} has the shape {value.shape}: a plan needs fixed shapes; "
                f"give it one with --shape {value.name}=…"
            )
    for node in model.graph:
        if bodies(node):
            raise UnsupportedOpError(f"{describe_node(node)}: the plan has no branches and loops, and this one stays")
        if rewriter.effect(node) is not Effect.PURE:
            raise UnsupportedOpError(f"{describe_node(node)}: a plan is deterministic, and this node is not")
        for out in node.outputs:
            if out.name and (static_shape(out) is None or out.dtype is None):
                raise UnsupportedOpError(
                    f"{describe_node(node)}: its output {out.name!r} has no fixed shape ({out.shape}); it may depend "
                    "on values that are known only when the model runs"
                )
