"""Operators that work in any layout of their operands: what changes in them when the layout does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .dims import rank_of
from .effects import Effect
from .rewriter import Rewriter
from .tensor_bytes import is_shared
from .view import constant_tensor, is_parameterized

Perm = tuple[int, ...]

UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Dropout Elu Erf Exp Floor Gelu "
    "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink "
    "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
)
BROADCASTING = (
    "Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul "
    "Or Pow PRelu Sub Sum Where Xor"
)
REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


@dataclasses.dataclass(frozen=True)
class Turn:
    """How one node is computed on operands in another layout.

    `reads` are the positions of the operands whose layout counts, all of `rank` dims or constants of fewer;
    `turns_output` says whether the results are in the other layout too: a reduction may drop what changes.
    """

    rank: int
    reads: tuple[int, ...]
    params: Callable[[Perm], dict[str, Any]]
    turns_output: bool = True
    kept: tuple[int, ...] | None = None
    fits: Callable[[Perm], bool] = lambda perm: True

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """The operands that change layout with the node, constants included."""
        return [value for i in self.reads if (value := node.inputs[i]) is not None]

    def allows(self, perm: Perm) -> bool:
        """Whether the node can be turned by `perm`: what a reduction leaves must stay in its order."""
        if len(perm) != self.rank or not self.fits(perm):
            return False
        if self.kept is None:
            return True
        places = [perm[axis] for axis in self.kept]
        return places == sorted(places)

    def build(self, node: ir.Node, operands: Sequence[ir.Value | None], perm: Perm, rw: Rewriter) -> ir.Node:
        """The node on operands x' where its own were Transpose(x', perm)."""
        params = self.params(perm)
        attributes = [attr for name, attr in node.attributes.items() if name not in params]
        return rw.op(node.op_type, *operands, at=node, outputs=len(node.outputs), attributes=attributes, **params)


def turn_of(node: ir.Node, rw: Rewriter) -> Turn | None:
    """How to turn the node; None when its meaning hangs on the layout, or too little is known about it."""
    opset = rw.opset(node) or 0
    if opset < 7 or not rw.is_standard(node) or not node.inputs or node.inputs[0] is None:
        return None
    maker = _MAKERS.get(node.op_type)
    if maker is None or rw.effect(node) is not Effect.PURE or is_parameterized(node):
        return None
    turn = maker(node, rw, opset)
    return turn if turn is not None and not any(map(_stays, turn.operands(node))) else None


def _stays(value: ir.Value) -> bool:
    """Whether a constant has no other layout: strings, and what would be stored in both."""
    tensor = constant_tensor(value)
    return tensor is not None and (tensor.dtype == ir.DataType.STRING or is_shared(value, tensor))


def _nothing(perm: Perm) -> dict[str, Any]:
    return {}


def _unary(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    rank = rank_of(node.inputs[0])
    if rank is None or rank < 2 or len(node.outputs) != 1 or constant_tensor(node.inputs[0]) is not None:
        return None
    return Turn(rank, (0,), _nothing)


def _broadcasting(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    """Operands of fewer dims than the result stay in place where they are single numbers, and must be constant else."""
    rank = rank_of(node.outputs[0])
    if rank is None or rank < 2:
        return None
    reads: list[int] = []
    for i, value in enumerate(node.inputs):
        own = rank_of(value)
        if value is None or own is None or value.shape is None:
            return None
        if all(dim == 1 for dim in value.shape) and (own < rank or constant_tensor(value) is not None):
            continue
        if own < rank and constant_tensor(value) is None:
            return None
        reads.append(i)
    if all(constant_tensor(node.inputs[i]) is not None for i in reads):
        return None
    return Turn(rank, tuple(reads), _nothing)


def _axis(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    """Concat, Split, ArgMax … along one axis."""
    view, rank = rw.view(node), rank_of(node.inputs[0])
    axis = view.attr("axis")
    if rank is None or rank < 2 or not isinstance(axis, int):
        return None
    if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:  # before, axes are flattened
        return None
    if node.op_type in ("ArgMax", "ArgMin") and view.attr("keepdims") != 1:
        return None
    reads = tuple(range(len(node.inputs))) if node.op_type == "Concat" else (0,)
    for i in reads:
        if rank_of(node.inputs[i]) != rank:
            return None
    return Turn(rank, reads, lambda perm: {"axis": perm[axis]})


def _reduction(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    """Along constant axes; Squeeze, too, which drops them."""
    view, rank = rw.view(node), rank_of(node.inputs[0])
    axes = view.ints("axes")
    if rank is None or rank < 2 or not isinstance(axes, tuple) or not axes:
        return None
    numbers = tuple(axis % rank for axis in axes)

    def params(perm: Perm) -> dict[str, Any]:
        return {"axes": sorted(perm[axis] for axis in numbers)}

    if node.op_type != "Squeeze" and view.attr("keepdims") == 1:
        return Turn(rank, (0,), params)
    kept = tuple(i for i in range(rank) if i not in numbers)
    return Turn(rank, (0,), params, turns_output=False, kept=kept)


def _resize(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    """By constant scales or sizes of all dims. Other modes than the nearest number know batch and channels in front."""
    view, rank = rw.view(node), rank_of(node.inputs[0])
    if rank is None or rank < 2 or opset < 11 or (opset >= 18 and view.attr("axes") is not None):
        return None
    if view.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    name = "sizes" if view.at(3) is not None else "scales"
    given = view.param(name)
    if not isinstance(given, np.ndarray) or given.size != rank:
        return None
    if opset >= 18 and view.attr("keep_aspect_ratio_policy") != "stretch":
        return None
    numbers, shape = given.reshape(-1), node.inputs[0].shape if node.inputs[0] is not None else None
    resized = [shape is None or shape[i] != numbers[i] if name == "sizes" else numbers[i] != 1 for i in range(rank)]

    def turned(perm: Perm) -> dict[str, Any]:
        back = [perm.index(i) for i in range(rank)]
        return {name: numbers[back]}

    def fits(perm: Perm) -> bool:
        return view.attr("mode") == "nearest" or not any(resized[perm.index(i)] for i in (0, 1))

    return Turn(rank, (0,), turned, fits=fits)


def _pad(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    view, rank = rw.view(node), rank_of(node.inputs[0])
    pads = view.ints("pads")
    if rank is None or not isinstance(pads, tuple) or len(pads) != 2 * rank or view.at(3) is not None or opset < 11:
        return None

    def params(perm: Perm) -> dict[str, Any]:
        back = [perm.index(i) for i in range(rank)]
        return {"pads": [pads[i] for i in back] + [pads[rank + i] for i in back]}

    return Turn(rank, (0,), params)


def _scaled(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    """QuantizeLinear and DequantizeLinear with one scale."""
    return _unary(node, rw, opset) if all(rank_of(value) == 0 for value in node.inputs[1:]) else None


def _slice(node: ir.Node, rw: Rewriter, opset: int) -> Turn | None:
    view, rank = rw.view(node), rank_of(node.inputs[0])
    axes = view.sliced_axes()
    if rank is None or rank < 2 or opset < 10 or not isinstance(axes, tuple):
        return None
    if node.inputs[1] is not None and node.inputs[1].dtype != ir.DataType.INT64:
        return None  # axes are of the type that starts have
    return Turn(rank, (0,), lambda perm: {"axes": [perm[axis] for axis in axes]})


_MAKERS: dict[str, Callable[[ir.Node, Rewriter, int], Turn | None]] = {
    **dict.fromkeys(UNARY.split(), _unary),
    **dict.fromkeys(BROADCASTING.split(), _broadcasting),
    **dict.fromkeys(("Concat", "Split", "Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin"), _axis),
    **dict.fromkeys((*REDUCTIONS.split(), "Squeeze"), _reduction),
    "Pad": _pad,
    "Resize": _resize,
    "QuantizeLinear": _scaled,
    "DequantizeLinear": _scaled,
    "Slice": _slice,
}
