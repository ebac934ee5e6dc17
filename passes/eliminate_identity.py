"""eliminate-identity: remove operators that hand their input on unchanged."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from . import uniform
from .dims import may_be_same, same_dim, same_dims
from .matching import either_way
from .numpy_ops import TO_THE_END, sliced
from .rewriter import Rewriter
from .rules import apply_rules, forward, rule, rules_in
from .view import RUNTIME, constant


@dataclasses.dataclass(frozen=True)
class EliminateIdentity:
    """Remove no-op Identity, Cast, Transpose, Reshape, Dropout, Pad, Slice, Concat, Expand, Add 0, Mul 1 and kin.

    before:  x ─ Cast(to=float) ─ y ─ Relu      (x is float)
    after:   x ─ Relu

    Also what a recurrent operator is given and starts from anyway: zeros.
    A no-op is proved: shapes by equal ints or equal symbols, constants by exact value. x + 0 counts as x, though it
    turns −0.0 into +0.0: ONNX Runtime and every peer do the same, and both compare equal.
    """

    name: ClassVar[str] = "eliminate-identity"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Identity")
def identity(node: ir.Node, rw: Rewriter) -> bool:
    """Identity(x) → x."""
    return forward(node, rw, node.inputs[0], "identity")


@rule("Cast", "CastLike")
def cast_to_same(node: ir.Node, rw: Rewriter) -> bool:
    """Cast(x) to the type x has → x; CastLike likewise."""
    source, out = node.inputs[0], node.outputs[0]
    if node.op_type == "Cast":
        to = rw.view(node).attr("to")
        target = ir.DataType(to) if isinstance(to, int) else None
    else:
        like = node.inputs[1]
        target = like.dtype if like is not None else None
    if source is None or source.dtype is None or target != source.dtype or not isinstance(out.type, ir.TensorType):
        return False
    return forward(node, rw, source, "cast_to_same")


@rule("Transpose")
def transpose_in_order(node: ir.Node, rw: Rewriter) -> bool:
    """Transpose(perm=[0, 1, …]) → x; also the default perm at rank ≤ 1."""
    perm, source = rw.view(node).attr("perm"), node.inputs[0]
    if perm is None:
        if source is None or source.shape is None or len(source.shape) > 1:
            return False
    elif perm is RUNTIME or tuple(perm) != tuple(range(len(perm))):
        return False
    return forward(node, rw, source, "transpose_in_order")


@rule("Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze", "Tile")
def keeps_shape(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape, Expand, Flatten, Squeeze, Unsqueeze or Tile whose result has the shape of its input → x.

    These move no element when the shape stays: proved by the inferred shapes.
    """
    source, out = node.inputs[0], node.outputs[0]
    if source is None or not same_dims(source.shape, out.shape):
        possible = source is not None and may_be_same(source.shape, out.shape)
        return possible and rw.reject("keeps_shape", "the result is not proved to have the shape of the input")
    if node.op_type == "Tile":  # dims of size 0 stay equal under any repeats
        repeats = rw.view(node).param("repeats" if (rw.opset(node) or 0) >= 6 else "tiles")
        if repeats is RUNTIME or repeats is None or not np.all(np.asarray(repeats) == 1) or (rw.opset(node) or 0) < 6:
            return False
    return forward(node, rw, source, "keeps_shape")


@rule("Dropout")
def dropout_at_inference(node: ir.Node, rw: Rewriter) -> bool:
    """Dropout outside training → x, when nobody reads the mask."""
    return forward(node, rw, node.inputs[0], "dropout_at_inference")


@rule("Pad")
def pad_nothing(node: ir.Node, rw: Rewriter) -> bool:
    """Pad with zeros everywhere → x."""
    view = rw.view(node)
    name = "pads" if view.opset >= 2 else "paddings"
    pads = view.ints(name)
    if pads is RUNTIME:
        return rw.reject("pad_nothing", "the amounts are only known at run time")
    if pads is None or any(pads):
        return False
    return forward(node, rw, node.inputs[0], "pad_nothing")


@rule("Slice")
def slice_everything(node: ir.Node, rw: Rewriter) -> bool:
    """Slice from the start to at least the end by steps of 1 → x."""
    source, cuts = node.inputs[0], rw.view(node).cuts()
    if source is None:
        return False
    if cuts is None:
        return rw.reject("slice_everything", "its bounds are only known at run time")
    for axis, start, end, step in cuts:
        if step != 1:
            return False
        if start == 0 and end >= TO_THE_END:
            continue
        dim = (
            source.shape[axis] if source.shape is not None and -len(source.shape) <= axis < len(source.shape) else None
        )
        if not isinstance(dim, int):
            return start == 0 and rw.reject("slice_everything", "it is not proved to reach the end")
        if len(sliced(dim, start, end, 1)) < dim:
            return False
    return forward(node, rw, source, "slice_everything")


@rule("Concat", "Sum", "Max", "Min", "Mean")
def single_operand(node: ir.Node, rw: Rewriter) -> bool:
    """Concat, Sum, Max, Min or Mean of one operand → it."""
    return len(node.inputs) == 1 and forward(node, rw, node.inputs[0], "single_operand")


@rule("Split")
def split_in_one(node: ir.Node, rw: Rewriter) -> bool:
    """Split into one part, which is all of it → x."""
    return len(node.outputs) == 1 and forward(node, rw, node.inputs[0], "split_in_one")


@rule("Resize", "Upsample")
def resize_nothing(node: ir.Node, rw: Rewriter) -> bool:
    """Resize with constant scales of one → x: every form of interpolation hits the elements themselves."""
    view = rw.view(node)
    scales = view.param("scales") if view.opset >= 9 else None
    if not isinstance(scales, np.ndarray) or scales.size == 0 or not np.all(scales == 1):
        return False
    if view.opset >= 11 and view.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        return False
    return forward(node, rw, node.inputs[0], "resize_nothing")


@rule("Clip")
def clip_nothing(node: ir.Node, rw: Rewriter) -> bool:
    """Clip without bounds (opset 11 on) of integers → x."""
    if (rw.opset(node) or 0) < 11 or any(v is not None for v in node.inputs[1:]):
        return False
    dtype = node.outputs[0].dtype
    if dtype is None or not dtype.is_integer():
        return rw.reject("clip_nothing", "of floats, it brings infinities to the largest finite number")
    return forward(node, rw, node.inputs[0], "clip_nothing")


@rule("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd")
def reduce_nothing(node: ir.Node, rw: Rewriter) -> bool:
    """ReduceSum/Max/Min/Mean/Prod over no axis (noop_with_empty_axes), or over dims of size 1 that are kept → x."""
    view, source = rw.view(node), node.inputs[0]
    if view.attr("keepdims") == 1 and source is not None and same_dims(source.shape, node.outputs[0].shape):
        return forward(node, rw, source, "reduce_nothing")
    try:
        noop = view.attr("noop_with_empty_axes")
    except KeyError:
        return False
    axes = view.ints("axes")
    if noop != 1 or axes is RUNTIME or axes:
        return False
    return forward(node, rw, source, "reduce_nothing")


_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1, "And": True, "Or": False, "Xor": False}
"""What leaves the other operand alone: the right one, or either one where the operator commutes."""


@rule(*_NEUTRAL)
def neutral_element(node: ir.Node, rw: Rewriter) -> bool:
    """x + 0, x − 0, x · 1, x / 1, x ** 1, x and True, x or False → x, if x has the result's shape and type."""
    if (rw.opset(node) or 0) < 7:  # before 7 broadcasting is an attribute
        return False
    for value, other in either_way(node):
        array = constant(other)
        if array is None or array.dtype == object or array.size == 0 or not np.all(array == _NEUTRAL[node.op_type]):
            continue
        out = node.outputs[0]
        if value.dtype is None or value.dtype != out.dtype:
            continue
        if not (same_dims(value.shape, out.shape) or _cannot_widen(value, array)):
            rw.reject("neutral_element", "the other operand is not proved to have the shape of the result")
            continue
        if array.ndim and array.size > 1 and _is_normalized(value, rw):
            rw.reject("neutral_element", "scale or bias of a norm, by which runtimes know its steps")
            continue
        if forward(node, rw, value, "neutral_element"):
            return True
    return False


@rule("LSTM", "GRU", "RNN")
def zero_state(node: ir.Node, rw: Rewriter) -> bool:
    """A recurrent operator that starts from zeros → the one without a given start, which is the same."""
    source, view = node.inputs[0], rw.view(node)
    shape, size = source.shape if source is not None else None, view.attr("hidden_size")
    if source is None or shape is None or len(shape) != 3 or not isinstance(size, int) or "layout" in node.attributes:
        return False
    directions = 2 if view.attr("direction") == "bidirectional" else 1
    dropped = False
    for name in ("initial_h", "initial_c") if node.op_type == "LSTM" else ("initial_h",):
        state = view.input(name)
        number = uniform.value(state, rw)
        if state is None or number is None or number != 0 or state.dtype != source.dtype:
            continue
        if not same_dims(state.shape, [directions, shape[1], size]):
            rw.reject("zero_state", "the zeros are not proved to have the state's shape")
            continue
        rw.set_input(node, node.inputs.index(state, 5), None)
        dropped = True
    return dropped


def _is_normalized(value: ir.Value, rw: Rewriter) -> bool:
    """Whether the value is something over a square root, perhaps scaled."""
    scaled = rw.producer(value, "Mul")
    for operand in [value, *(scaled.inputs if scaled is not None else ())]:
        node = rw.producer(operand, "Div") or rw.producer(operand, "Reciprocal")
        if node is not None and rw.producer(node.inputs[-1], "Sqrt") is not None:
            return True
        nested = rw.producer(operand, "Mul") if operand is not value else None
        for inner in nested.inputs if nested is not None else ():
            inverse = rw.producer(inner, "Reciprocal")
            if inverse is not None and rw.producer(inverse.inputs[0], "Sqrt") is not None:
                return True
    return False


def _cannot_widen(value: ir.Value, constant_operand: np.ndarray) -> bool:
    """A constant of ones in shape, of no higher rank, broadcasts without changing the other operand's shape."""
    if constant_operand.ndim == 0:
        return True
    if value.shape is None or constant_operand.ndim > len(value.shape):
        return False
    tail = list(value.shape)[len(value.shape) - constant_operand.ndim :]
    return all(c == 1 or same_dim(d, c) for d, c in zip(tail, constant_operand.shape))


RULES = rules_in(globals())
