"""What can be planned: every value of fixed shape and known type, no branches or loops, no calls without a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from pfvm.compiler import options
from pfvm.compiler.driver import compile_model
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import InputError, UnsupportedOpError, describe_node, did_you_mean, flag
from pfvm.passes.constant_subgraph import Evaluate
from pfvm.passes.dims import static_shape
from pfvm.passes.effects import Effect, bodies
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.view import constant_tensor

from .functions import mark_functions
from .old_forms import modernize, trains
from .recurrent import GATES
from .unroll import Unroller

# Loops are unrolled here, under the limit that the user gives.
_OPTIONS = options.parse(disable=["unroll-loops"])


def prepare(
    model: ir.Model,
    shapes: Mapping[str, Sequence[int]],
    evaluate: Evaluate | None = None,
    unroll_limit: int = 10_000,
) -> ir.Model:
    """The model with fixed shapes everywhere, as a new model.

    shapes: input name → its shape, for inputs whose shape is open. The passes run again where shapes are given or open,
    and where nodes compute from constants alone: that is a constant then. evaluate: runs constant subgraphs; without it
    floating point ones stay.
    unroll_limit: nodes that loops may unroll to.
    Raises InputError for a shape that does not fit, UnsupportedOpError naming the node for what cannot be planned.
    """
    working = model.clone()
    _fix(working, shapes)
    _check_inputs(working)
    _inferred(working)
    unroller = Unroller(unroll_limit)
    if shapes or any(_is_open(node) or _is_constant(node) for node in working.graph):
        working = compile_model(working, _OPTIONS, evaluate=evaluate).model
        while unroller.run(working):
            working = compile_model(working, _OPTIONS, evaluate=evaluate).model
    mark_functions(working)
    rewriter = _inferred(working)
    _check(working, rewriter)
    modernize(rewriter)
    return working


def _inferred(model: ir.Model) -> Rewriter:
    rewriter = Rewriter(model, ShapeInference(model))
    rewriter.shapes.infer_model()
    return rewriter


def _is_open(node: ir.Node) -> bool:
    """Has the node bodies or steps, or an output whose shape is not fixed?"""
    return (
        bool(bodies(node))
        or node.op_type in GATES
        or any(out.name and static_shape(out) is None for out in node.outputs)
    )


def _is_constant(node: ir.Node) -> bool:
    """Does the node compute the same each time, as exporters write a weight of two names?"""
    return all(value is None or constant_tensor(value) is not None for value in node.inputs)


def _fix(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    inputs = {value.name: value for value in model.graph.inputs}
    for name, shape in shapes.items():
        if name not in inputs:
            near = did_you_mean(name, map(str, inputs))
            raise InputError(
                f"the model has no input {name!r}, for which a shape is given{near}; "
                f"its inputs: {', '.join(map(str, inputs))}"
            )
        value = inputs[name]
        if value.shape is not None:
            fits = len(value.shape) == len(shape) and all(
                not isinstance(dim, int) or dim == size for dim, size in zip(value.shape, shape)
            )
            if not fits:
                raise InputError(
                    f"the shape {list(shape)} that is given for {name!r} does not fit the model's {value.shape}"
                )
        value.shape = ir.Shape(shape)


def _check_inputs(model: ir.Model) -> None:
    for value in model.graph.inputs:
        if static_shape(value) is None:
            example = ",".join("1" if isinstance(dim, ir.SymbolicDim) else str(dim) for dim in value.shape or ()) or "…"
            keyword = f'shapes={{"{value.name}": [{example}]}}'
            raise InputError(
                f"input {value.name!r} has the shape {value.shape}: a plan needs fixed shapes; "
                f"give it one, as with {flag('shape', f'{value.name}={example}', keyword)}"
            )


def _check(model: ir.Model, rewriter: Rewriter) -> None:
    for value in model.graph.inputs:
        _check_type(value)
    for node in model.graph:
        if bodies(node):
            raise UnsupportedOpError(_why_it_stays(node))
        if rewriter.effect(node) is not Effect.PURE and not trains(node, rewriter):
            raise UnsupportedOpError(f"{describe_node(node)}: a plan is deterministic, and this node is not")
        for out in node.outputs:
            _check_type(out)
            if out.name and (static_shape(out) is None or out.dtype is None):
                raise UnsupportedOpError(
                    f"{describe_node(node)}: its output {out.name!r} has no fixed shape ({out.shape}); it may depend "
                    "on values that are known only when the model runs"
                )


def _check_type(value: ir.Value) -> None:
    """Tensors of numbers and booleans have a place on a machine; what is not known yet is not judged."""
    kind = value.type
    if kind is not None and (not isinstance(kind, ir.TensorType) or kind.dtype in _NO_NUMBERS):
        raise UnsupportedOpError(f"{value.name!r} is {kind}: a plan has places for tensors of numbers and of booleans")


_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


def _why_it_stays(node: ir.Node) -> str:
    """What keeps a branch or a loop from being made straight, and what would help."""
    what = describe_node(node)
    if node.op_type == "If":
        return (
            f"{what}: a plan has no branches, and its condition {node.inputs[0].name!r} is known only when the model "  # type: ignore[union-attr]
            "runs; make the value that it depends on a constant of the model"
        )
    if node.op_type == "Loop":
        count = node.inputs[0]
        name = "none" if count is None else repr(count.name)
        return (
            f"{what}: a plan unrolls loops, and this one ends on a condition or on a count ({name}) that is known "
            "only when the model runs; a constant count and a condition that stays true would help"
        )
    return f"{what}: a plan has no bodies of this kind; its iterations have to be known before it runs"
