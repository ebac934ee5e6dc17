"""select-early: what is computed for every position and read at one is computed at that one."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .contrib import DOMAIN
from .dims import same_dim, same_dims
from .dtypes import ALL_FLOATS
from .effects import Effect
from .layout_agnostic import BROADCASTING, UNARY
from .matching import only_reader
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in
from .view import constant, is_parameterized

_ROWWISE = frozenset({*UNARY.split(), *BROADCASTING.split()} - {"Dropout"})
_CONTRIB = frozenset({"Gelu", "FastGelu", "QuickGelu", "BiasGelu"})
"""Elementwise operators of com.microsoft."""
_SELECTED = ALL_FLOATS | {ir.DataType.BOOL}
"""Types of what is selected: what is computed, and what is asked of it."""
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_LOOKAHEAD = 24
"""Nodes that are looked through for a product of matrices that would become smaller."""


@dataclasses.dataclass(frozen=True)
class SelectEarly:
    """Move a Gather or Slice before elementwise operators, norms, Softmax, layouts and products of matrices.

    before:  x[N,197,768] ─ MatMul(·, w) ─ Gelu ─ MatMul(·, v) ─ LayerNormalization ─ Gather(0, axis=1) ─ y[N,768]
    after:   x[N,197,768] ─ Gather([0], axis=1) ─ MatMul(·, w) ─ Gelu ─ … ─ LayerNormalization ─ Squeeze ─ y[N,768]

    Classifiers read one token of the last layer. Each step keeps positions of the axis apart, is read by the selection
    alone, and the way up reaches a product of matrices whose rows are selected. The numbers are those that the smaller
    product rounds to.
    """

    name: ClassVar[str] = "select-early"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@dataclasses.dataclass(frozen=True)
class _Selection:
    """Positions of one axis; `single` where Gather drops the axis."""

    axis: int
    count: int | None
    index: np.ndarray | None = None
    bounds: tuple[int, int, int] = (0, 0, 1)
    single: bool = False

    def of(self, value: ir.Value, axis: int, at: ir.Node, rw: Rewriter) -> ir.Value:
        """The value at these positions of its own `axis`, which is kept."""
        if self.index is not None:
            index = rw.constant(self.index.reshape(-1), f"{at.outputs[0].name}_index", at)
            return rw.op("Gather", value, index, at=at, axis=axis).outputs[0]
        start, end, step = self.bounds
        return rw.op("Slice", value, at=at, starts=[start], ends=[end], axes=[axis], steps=[step]).outputs[0]


@rule("Gather", "Slice")
def select_before(node: ir.Node, rw: Rewriter) -> bool:
    """select(f(x)) → f(select(x))."""
    data = node.inputs[0]
    step = data.producer() if data is not None else None
    if data is None or step is None or data.dtype not in _SELECTED:
        return False
    selection = _selection(node, rw)
    axes = _operand_axes(step, selection.axis, rw) if selection is not None else None
    if selection is None or axes is None:
        return False
    if only_reader(data) is not node:
        return rw.reject("select_before", "what is selected from is needed elsewhere")
    if not _reaches_product(node, step, selection.axis, rw):
        return rw.reject("select_before", "no product of matrices would become smaller")
    operands = [
        value if axis is None or value is None else selection.of(value, axis, node, rw)
        for value, axis in zip(step.inputs, axes, strict=True)
    ]
    if step.op_type == "Reshape":
        target = _target(step, selection)
        if target is None:
            return rw.reject("select_before", "the new shape of a Reshape is not known")
        operands[1] = rw.constant(target, f"{data.name}_shape", node)
    attributes = [attr for name, attr in step.attributes.items() if name != "allowzero"]  # 0 keeps a dim in `target`
    new = rw.op(step.op_type, *operands, at=node, domain=step.domain, attributes=attributes).outputs[0]
    new.type = new.type or data.type
    if selection.single:
        new = rw.op("Squeeze", new, at=node, axes=[selection.axis]).outputs[0]
    rw.replace(node, new)
    return True


def _selection(node: ir.Node, rw: Rewriter) -> _Selection | None:
    view, data = rw.view(node), node.inputs[0]
    if data is None or data.shape is None or len(data.shape) < 2 or view.opset < 13:
        return None
    rank = len(data.shape)
    if node.op_type == "Gather":
        index, axis = constant(node.inputs[1]), view.attr("axis")
        if index is None or index.ndim > 1 or not isinstance(axis, int):
            return None
        selection = _Selection(axis % rank, index.size, index=index, single=index.ndim == 0)
    else:
        starts, ends, axes, steps = (view.ints(name) for name in ("starts", "ends", "axes", "steps"))
        one = all(isinstance(each, tuple) and len(each) == 1 for each in (starts, ends, axes))
        if not one or not (steps is None or isinstance(steps, tuple)):
            return None
        assert isinstance(starts, tuple) and isinstance(ends, tuple) and isinstance(axes, tuple)
        count = node.outputs[0].shape[axes[0]] if node.outputs[0].shape is not None else None
        bounds = (starts[0], ends[0], steps[0] if steps else 1)
        selection = _Selection(axes[0] % rank, count if isinstance(count, int) else None, bounds=bounds)
    dim = data.shape[selection.axis]
    if selection.count is None or (isinstance(dim, int) and selection.count >= dim):
        return None
    return selection if isinstance(dim, int) or selection.count == 1 else None


def _operand_axes(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    """For each operand the axis whose positions are those of the result's `axis`, None for one that is read as it is.

    None where a position of the result depends on several positions of an operand, or too little is known.
    """
    contrib = step.domain == DOMAIN and step.op_type in _CONTRIB
    if (
        not (rw.is_standard(step) or contrib)
        or rw.effect(step) is not Effect.PURE
        or rw.view(step).used_outputs() != [0]
    ):
        return None
    if is_parameterized(step):
        return None
    out = step.outputs[0]
    if out.shape is None or any(value is not None and value.shape is None for value in step.inputs):
        return None
    if contrib or step.op_type in _ROWWISE:
        return _broadcast(step, list(step.inputs), axis)
    maker = _MAKERS.get(step.op_type)
    return None if maker is None else maker(step, axis, rw)


def _broadcast(step: ir.Node, operands: list[ir.Value | None], axis: int) -> list[int | None] | None:
    shape = step.outputs[0].shape
    assert shape is not None
    found: list[int | None] = []
    for value in operands:
        own = value.shape if value is not None else None
        place = -1 if own is None else axis - (len(shape) - len(own))
        if own is None or place < 0 or (own[place] == 1 and shape[axis] != 1):
            found.append(None)
        elif same_dim(own[place], shape[axis]):
            found.append(place)
        else:
            return None
    return found


def _norm(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    """LayerNormalization and RMSNormalization over later axes; Softmax over another one."""
    view, shape = rw.view(step), step.outputs[0].shape
    assert shape is not None
    softmax = step.op_type in ("Softmax", "LogSoftmax")
    # Old files hold norms before the standard had them, or that it never had.
    along = view.attr("axis") if softmax else step.attributes.get_int("axis", -1)
    if not isinstance(along, int) or not -len(shape) <= along < len(shape):
        return None
    along %= len(shape)
    apart = axis != along if softmax else axis < along
    return _broadcast(step, list(step.inputs), axis) if apart else None  # scale and bias may have rows, too


def _reduction(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    """Over other axes, whose dims are kept."""
    view, shape = rw.view(step), step.outputs[0].shape
    axes = view.ints("axes")
    if view.attr("keepdims") != 1 or not isinstance(axes, tuple) or not axes or shape is None:
        return None
    others = axis not in {each % len(shape) for each in axes}
    return [axis, *(None for _ in step.inputs[1:])] if others else None


def _matmul(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    left, right = step.inputs
    assert left is not None and right is not None and left.shape is not None and right.shape is not None
    shape = step.outputs[0].shape
    assert shape is not None
    if len(left.shape) < 2 or len(right.shape) < 2 or axis == len(shape) - 1:
        return None
    if axis == len(shape) - 2:
        return [len(left.shape) - 2, None]
    return _broadcast(step, [left, right], axis)


def _gemm(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    if axis != 0:
        return None
    bias = _broadcast(step, list(step.inputs[2:]), 0)
    return None if bias is None else [rw.view(step).attr("transA"), None, *bias]


def _transpose(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    perm = rw.view(step).attr("perm")
    return [perm[axis]] if isinstance(perm, tuple) else None


def _reshape(step: ir.Node, axis: int, rw: Rewriter) -> list[int | None] | None:
    """Where the dims up to `axis` stay; dims of one element may come and go."""
    source, shape = step.inputs[0], step.outputs[0].shape
    assert source is not None and source.shape is not None and shape is not None
    wanted = [dim for dim in shape[: axis + 1] if dim != 1]
    if shape[axis] == 1:
        return None
    for place in range(len(source.shape)):
        own = [dim for dim in source.shape[: place + 1] if dim != 1]
        if source.shape[place] != 1 and len(own) == len(wanted):
            return [place, None] if same_dims(own, wanted) else None
    return None


_MAKERS = {
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _norm),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _norm),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), _reduction),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
}


def _target(step: ir.Node, selection: _Selection) -> np.ndarray | None:
    """The second operand of the Reshape on selected positions: 0 keeps a symbolic dim, −1 stands for one."""
    source, shape = step.inputs[0], step.outputs[0].shape
    assert source is not None and source.shape is not None and shape is not None and selection.count is not None
    dims = list[int]()
    for i, dim in enumerate(shape):
        kept = i < min(selection.axis, len(source.shape)) and same_dims(source.shape[: i + 1], shape[: i + 1])
        dims.append(selection.count if i == selection.axis else dim if isinstance(dim, int) else 0 if kept else -1)
    empty = any(dim == 0 for dim in shape)
    return None if empty or dims.count(-1) > 1 else np.asarray(dims, np.int64)


def _reaches_product(selection: ir.Node, step: ir.Node, axis: int, rw: Rewriter) -> bool:
    """Whether the way up from `step` comes to a product of which rows are selected.

    A value that several nodes read counts where each of them is on the way, or is an equal selection.
    """
    stack, seen = [(step, axis)], set[ir.Node]()
    while stack and len(seen) < _LOOKAHEAD:
        node, along = stack.pop()
        axes = _operand_axes(node, along, rw)
        if axes is None:
            continue
        if node.op_type in _PRODUCTS:
            return True
        seen.add(node)
        for value, place in zip(node.inputs, axes, strict=True):
            producer = value.producer() if value is not None else None
            if value is None or producer is None or place is None or value.is_graph_output():
                continue
            readers = [use.node for use in value.uses()]
            if producer.graph is node.graph and all(each in seen or _equal(each, selection) for each in readers):
                stack.append((producer, place))
    return False


def _equal(node: ir.Node, selection: ir.Node) -> bool:
    return node.op_type == selection.op_type and list(node.inputs[1:]) == list(selection.inputs[1:])


RULES = rules_in(globals())
