"""fuse-layer-norm: a normalization written out is LayerNormalization."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import Dim, same_dims
from .matching import either_way, keeps_rank, number, only_reader, read_only_by
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in
from .view import constant

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_RULES = {
    "LayerNormalization": "layer_norm",
    "RMSNormalization": "rms_norm",
    "SimplifiedLayerNormalization": "simplified",
}
"""The rule that makes the operator."""


@dataclasses.dataclass(frozen=True)
class FuseLayerNorm:
    """(x − mean) / √(variance + ε) · scale + bias becomes LayerNormalization.

    before:  x ─┬─ ReduceMean ─ Sub(x, ·) ─┬─ Pow 2 ─ ReduceMean ─ Add ε ─ Sqrt ─ Div ─ Mul scale ─ Add bias ─ y
                └──────────────            └──────────────────────────────────── ·
    after:   x ─ LayerNormalization(·, scale, bias) ─ y

    At opset 17 on, over the last axes, in float, or in half precision where everything up to the quotient is cast to
    float and back; operands in any order, also with Mul(d, d) and Reciprocal. Nobody else reads a step. scale and bias
    have the shape of the normalized axes; other ones stay outside.
    """

    name: ClassVar[str] = "fuse-layer-norm"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Div", "Mul")
def layer_norm(node: ir.Node, rw: Rewriter) -> bool:
    """The quotient of a deviation by its own root mean square, with what follows it → LayerNormalization."""
    return (rw.opset(node) or 0) >= 17 and written_out(node, rw)


def written_out(node: ir.Node, rw: Rewriter) -> bool:
    """Replace the quotient and what it is made of by LayerNormalization, whatever the opset."""
    nodes: list[ir.Node] = []
    found = root_mean_square(node, rw, nodes)
    if found is None:
        return False
    deviation, epsilon, axes = found
    source = _centered(deviation, axes, rw, nodes)
    if source is None:
        return rw.reject("layer_norm", "the mean of the same axes is not subtracted")
    return normalization(node, "LayerNormalization", source, epsilon, axes, rw, nodes)


def root_mean_square_norm(node: ir.Node, op_type: str, rw: Rewriter) -> bool:
    """Replace the quotient of a value by its own root mean square by this operator, whatever the opset."""
    nodes: list[ir.Node] = []
    found = root_mean_square(node, rw, nodes)
    if found is None:
        return False
    source, epsilon, axes = found
    return normalization(node, op_type, source, epsilon, axes, rw, nodes)


Found = tuple[ir.Value, float, tuple[int, ...]]


def root_mean_square(node: ir.Node, rw: Rewriter, nodes: list[ir.Node]) -> Found | None:
    """d, ε and the axes of d / √(mean(d²) + ε), where `node` is the quotient, or a product with the reciprocal.

    Appends the steps before `node`. Axes are counted from the end, in order.
    """
    if node.op_type == "Div":
        pairs = [(node.inputs[0], node.inputs[1])]
    else:
        pairs = [(d, _denominator(by, rw, nodes)) for d, by in either_way(node)]
    for deviation, root in pairs:
        sqrt = rw.producer(root, "Sqrt")
        if sqrt is None or deviation is None or deviation.dtype != ir.DataType.FLOAT:
            continue
        total = rw.producer(sqrt.inputs[0], "Add")
        for mean, shift in either_way(total) if total is not None else ():
            epsilon, average = number(shift), rw.producer(mean, "ReduceMean")
            if total is None or epsilon is None or average is None:
                continue
            axes = trailing_axes(average, rw)
            if axes is not None and _is_square(average.inputs[0], deviation, rw, nodes):
                nodes.extend((average, total, sqrt))
                return deviation, epsilon, axes
    return None


def _denominator(value: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> ir.Value | None:
    """r of 1 / r."""
    inverse = rw.producer(value, "Reciprocal") or rw.producer(value, "Div")
    if inverse is None or (inverse.op_type == "Div" and number(inverse.inputs[0]) != 1):
        return None
    root = inverse.inputs[-1]
    if rw.producer(root, "Sqrt") is not None:
        nodes.append(inverse)
    return root


def _is_square(value: ir.Value | None, of: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> bool:
    """Whether the value is `of` squared; a second computation of `of`, as old exporters write it, counts."""
    node = value.producer() if value is not None else None
    if node is None or not rw.is_standard(node):
        return False
    if node.op_type == "Pow":
        squared = number(node.inputs[1]) == 2 and _same(node.inputs[0], of, rw, nodes)
    else:
        squared = node.op_type == "Mul" and all(_same(operand, of, rw, nodes) for operand in node.inputs)
    if squared:
        nodes.append(node)
    return squared


def _same(value: ir.Value | None, other: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> bool:
    if value is other:
        return True
    first, second = rw.producer(value, "Sub"), rw.producer(other, "Sub")
    if first is None or second is None or first.inputs != second.inputs:
        return False
    nodes.append(first)
    return True


def trailing_axes(node: ir.Node, rw: Rewriter) -> tuple[int, ...] | None:
    """The axes of a reduction that keeps dims, as −n … −1; None where they are not the last ones."""
    view = rw.view(node)
    axes = view.ints("axes")
    if view.attr("keepdims") != 1 or not isinstance(axes, tuple) or not axes:
        return None
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if any(axis >= 0 for axis in axes) and shape is None:
        return None
    counted = tuple(sorted(axis if axis < 0 or shape is None else axis - len(shape) for axis in axes))
    return counted if counted == tuple(range(-len(counted), 0)) else None


def _centered(deviation: ir.Value, axes: tuple[int, ...], rw: Rewriter, nodes: list[ir.Node]) -> ir.Value | None:
    """x of x − mean(x)."""
    difference = rw.producer(deviation, "Sub")
    average = rw.producer(difference.inputs[1], "ReduceMean") if difference is not None else None
    if difference is None or average is None or average.inputs[0] is not difference.inputs[0]:
        return None
    if trailing_axes(average, rw) != axes:
        return None
    nodes.extend((difference, average))
    return average.inputs[0]


def normalization(
    node: ir.Node,
    op_type: str,
    source: ir.Value,
    epsilon: float,
    axes: tuple[int, ...],
    rw: Rewriter,
    nodes: list[ir.Node],
) -> bool:
    """Replace the quotient `node`, its scale and its bias by the operator. `nodes` are the steps before `node`."""
    name = _RULES[op_type]
    if not read_only_by([*dict.fromkeys(nodes), node]):
        return rw.reject(name, "a step is needed elsewhere")
    shape = source.shape
    if shape is None or len(shape) < len(axes):
        return rw.reject(name, "the rank is not known")
    if not keeps_rank(source, node, nodes):
        return rw.reject(name, "a constant is not proved to leave the number of dims alone")
    last, start = node, source
    widened, narrowed = rw.producer(source, "Cast"), only_reader(node.outputs[0])
    if widened is not None and widened.inputs[0] is not None and widened.inputs[0].dtype in _HALVES:
        inner = widened.inputs[0]
        is_cast = narrowed is not None and narrowed.op_type == "Cast" and rw.is_standard(narrowed)
        if narrowed is not None and is_cast and narrowed.outputs[0].dtype == inner.dtype:
            last, start = narrowed, inner  # the statistics stay in float: stash_type
    dims = list(shape)[len(shape) - len(axes) :]
    last, scale = _operand(last, "Mul", dims, start.dtype, rw)
    bias: ir.Value | None = None
    if op_type == "LayerNormalization":
        last, bias = _operand(last, "Add", dims, start.dtype, rw)
    if scale is None:
        if not all(isinstance(dim, int) for dim in dims):
            return rw.reject(name, "there is no scale, and the normalized dims are not known")
        assert start.dtype is not None
        ones = np.ones([int(dim) for dim in dims], start.dtype.numpy())  # type: ignore[arg-type]
        scale = rw.constant(ones, f"{last.outputs[0].name}_scale", last)
    operands = [start, scale] if bias is None else [start, scale, bias]
    # Not by the schema: ONNX Runtime's SimplifiedLayerNormalization has none here.
    given = [ir.AttrInt64("axis", -len(axes)), ir.AttrFloat32("epsilon", epsilon)]
    rw.replace(last, rw.op(op_type, *operands, at=last, attributes=given).outputs[0])
    return True


def _operand(
    last: ir.Node, op_type: str, dims: list[Dim], dtype: ir.DataType | None, rw: Rewriter
) -> tuple[ir.Node, ir.Value | None]:
    """The node after `last` that multiplies or adds a value of exactly these dims, and that value; else `last`."""
    reader = only_reader(last.outputs[0])
    if reader is None or reader.op_type != op_type or not rw.is_standard(reader):
        return last, None
    for own, other in either_way(reader):
        if own is not last.outputs[0] or other.dtype != dtype or other.shape is None:
            continue
        if same_dims(other.shape, dims):
            return reader, other
        array, leading = constant(other), len(other.shape) - len(dims)
        if array is None or own.shape is None or not 0 < leading <= len(own.shape) - len(dims):
            continue
        if same_dims(other.shape, [*(1,) * leading, *dims]):
            name = other.name or f"{reader.outputs[0].name}_operand"
            return reader, rw.constant(array.reshape(array.shape[leading:]), name, reader)
    return last, None


RULES = rules_in(globals())
