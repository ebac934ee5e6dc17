"""Attention written out: softmax(q kᵀ · scale + mask) v, found from its Softmax."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from .dims import Dim, rank_of, same_dim
from .matching import either_way, number, only_reader, read_only_by
from .rewriter import Rewriter
from .view import constant


@dataclasses.dataclass(frozen=True)
class Steps:
    """Operands of [batch, heads, length, size] and the product `last`, which computes the same form.

    `keys` is kᵀ: [batch, heads, size, length]. `hidden`: the Where that gives scores a number far below all others.
    """

    query: ir.Value
    keys: ir.Value
    values: ir.Value
    scale: float
    mask: ir.Value | None
    scores: ir.Value
    last: ir.Node
    hidden: ir.Node | None = None


def attention_steps(softmax: ir.Node, rw: Rewriter, rule: str, where: bool = False) -> Steps | None:
    """The steps around a Softmax of four dims in float; None where there are others, `rule` rejected with why.

    `where`: a Where may hide scores, before or after the mask is added.
    """
    scores = scores_of(softmax, rw)
    found = None if scores is None else product_with_values(softmax.outputs[0], rw, rule)
    if scores is None or found is None:
        return None
    last, values = found
    inside: list[ir.Node] = [softmax]
    hidden, value = _hidden(scores, rw, inside) if where else (None, scores)
    mask, value = _mask(value, rw, inside, where and hidden is None)
    if where and hidden is None:
        hidden, value = _hidden(value, rw, inside)
    product = scaled_product(value, values, [*inside, last], rw, rule)
    if product is None:
        return None
    query, keys, scale = product
    return Steps(query, keys, values, scale, mask, scores, last, hidden)


def scores_of(softmax: ir.Node, rw: Rewriter) -> ir.Value | None:
    """The scores of a Softmax over the last of four dims, in float; None of any other."""
    view, scores = rw.view(softmax), softmax.inputs[0]
    if scores is None or scores.dtype != ir.DataType.FLOAT or view.opset < 13:
        return None
    return scores if rank_of(scores) == 4 and view.attr("axis") in (-1, 3) else None


def product_with_values(weights: ir.Value, rw: Rewriter, rule: str) -> tuple[ir.Node, ir.Value] | None:
    """The product that alone reads the probabilities, as its first operand, and its second one, the values."""
    last = only_reader(weights)
    if last is None or last.op_type != "MatMul":
        rw.reject(rule, "the probabilities are not read by one product alone")
        return None
    values = last.inputs[1]
    return (last, values) if last.inputs[0] is weights and values is not None and rw.is_standard(last) else None


def scaled_product(
    scores: ir.Value, values: ir.Value, steps: list[ir.Node], rw: Rewriter, rule: str
) -> tuple[ir.Value, ir.Value, float] | None:
    """Queries, kᵀ and the scale of scores without a mask, all of four dims, where nothing else reads these `steps`."""
    inside: list[ir.Node] = []
    scale, value = scaled(scores, rw, inside)
    product = rw.producer(value, "MatMul")
    if product is None:
        return None
    query, keys = product.inputs
    if query is None or keys is None or not all(rank_of(v) == 4 for v in (query, keys, values)):
        return None
    if not read_only_by([*inside, product, *steps]):
        rw.reject(rule, "a step is needed elsewhere")
        return None
    if any(dim == 0 for value in (query, keys, values) for dim in value.shape or ()):
        rw.reject(rule, "there is nothing to attend to, or from, which kernels of attention refuse")
        return None
    own: list[ir.Node] = []
    by_query, query = scaled(query, rw, own)
    by_keys, keys = scaled(keys, rw, own)
    return query, keys, scale * by_query * by_keys


def _mask(scores: ir.Value, rw: Rewriter, nodes: list[ir.Node], where: bool) -> tuple[ir.Value | None, ir.Value]:
    """What is added to the scores, and the scores without it: the operand that is a product, perhaps scaled."""
    node = rw.producer(scores, "Add")
    for value, other in either_way(node) if node is not None else ():
        _, inner = _hidden(value, rw, []) if where else (None, value)
        _, inner = scaled(inner, rw, [])
        if node is not None and rw.producer(inner, "MatMul") is not None and rank_of(value) == 4:
            nodes.append(node)
            return other, value
    return None, scores


def _hidden(scores: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> tuple[ir.Node | None, ir.Value]:
    """The Where that replaces scores by one number, and the scores without it."""
    node = rw.producer(scores, "Where")
    for value, by in ((1, 2), (2, 1)) if node is not None else ():
        assert node is not None
        inner = node.inputs[value]
        if inner is not None and rank_of(inner) == 4 and number(node.inputs[by]) is not None:
            nodes.append(node)
            return node, inner
    return None, scores


def scaled(value: ir.Value, rw: Rewriter, nodes: list[ir.Node]) -> tuple[float, ir.Value]:
    """The number that the value is multiplied by, and what is multiplied."""
    node = value.producer()
    if node is None or not rw.is_standard(node) or node.op_type not in ("Mul", "Div"):
        return 1.0, value
    pairs = either_way(node) if node.op_type == "Mul" else [(node.inputs[0], node.inputs[1])]
    for inner, by in pairs:
        scale = number(by)
        if inner is None or by is None or not scale or not np.isfinite(scale) or rank_of(by) not in (0, 1):
            continue
        nodes.append(node)
        return (scale if node.op_type == "Mul" else 1 / scale), inner
    return 1.0, value


def widened_dims(value: ir.Value, rw: Rewriter) -> list[Dim]:
    """The dims of a value where it meets one that it broadcasts to.

    `Slice(c, 0, n)` of two positions or more has n of them, or as many as c has. The latter is not n, and not one, so
    nothing of n positions meets it: where the value is used, it has n.
    """
    assert value.shape is not None
    dims, found = list(value.shape), set[int]()
    node = rw.producer(value, "Slice")
    while node is not None and node.inputs[0] is not None and node.inputs[0].shape is not None:
        view, source = rw.view(node), node.inputs[0].shape
        axes, starts = view.sliced_axes(), view.ints("starts")
        end = node.inputs[2] if len(node.inputs) > 2 else None
        ends = rw.shapes.contents(end) if end is not None else None
        if not isinstance(axes, tuple) or not view.is_dense_cut():
            break
        for i, axis in enumerate(each % len(source) for each in axes):
            size = source[axis]
            is_first = isinstance(starts, tuple) and starts[i] == 0 and axis not in found
            if is_first and ends is not None and len(ends) == len(axes) and isinstance(size, int) and size > 1:
                dims[axis] = dims[axis] if isinstance(ends[i], int) else ends[i]
            found.add(axis)
        node = rw.producer(node.inputs[0], "Slice")
    return dims


def keys_of(transposed: ir.Value, at: ir.Node, rw: Rewriter) -> ir.Value | None:
    """k of kᵀ as [batch, heads, length, size]."""
    node = rw.producer(transposed, "Transpose")
    perm = rw.view(node).attr("perm") if node is not None else None
    if node is None or node.inputs[0] is None:
        return None
    if perm == (0, 1, 3, 2):
        return node.inputs[0]
    if perm == (0, 2, 3, 1):
        return rw.op("Transpose", node.inputs[0], at=at, perm=[0, 2, 1, 3]).outputs[0]
    return None


@dataclasses.dataclass(frozen=True)
class Heads:
    """A value of [batch, length, heads · size] whose heads stand apart elsewhere."""

    source: ir.Value
    target: tuple[int, ...] | None
    heads: int
    size: int

    def joined(self, at: ir.Node, rw: Rewriter) -> ir.Value:
        """The value itself, of three dims."""
        if self.target is None:
            return self.source
        return rw.op("Reshape", self.source, at=at, shape=np.asarray(self.target, np.int64)).outputs[0]


def heads_of(value: ir.Value, rw: Rewriter, transposed: bool = False) -> Heads | None:
    """The heads that Transpose(Reshape(x)) sets apart: [batch, heads, length, size], the last two turned or not."""
    node = rw.producer(value, "Transpose")
    if node is None or rw.view(node).attr("perm") != ((0, 2, 3, 1) if transposed else (0, 2, 1, 3)):
        return None
    reshape = rw.producer(node.inputs[0], "Reshape")
    if reshape is None or reshape.inputs[0] is None or node.inputs[0] is None or node.inputs[0].shape is None:
        return None
    source, shape = reshape.inputs[0], node.inputs[0].shape
    heads, size = shape[2], shape[3]
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    if rank_of(source) == 3 and source.shape is not None and source.shape[2] == heads * size:
        target = constant(reshape.inputs[1])
        zeros = rw.view(reshape).opset < 14 or rw.view(reshape).attr("allowzero") == 0
        copied = zeros and target is not None and not target[:2].any()
        if copied or (same_dim(source.shape[0], shape[0]) and same_dim(source.shape[1], shape[1])):
            return Heads(source, None, heads, size)
    leading = [dim if isinstance(dim, int) else -1 for dim in shape[:2]]
    if leading.count(-1) > 1 or 0 in leading:
        return None
    return Heads(source, (*leading, heads * size), heads, size)


def joined_heads(last: ir.Node, rw: Rewriter) -> ir.Node | None:
    """The Reshape that joins the heads after the last product, where it copies no dim behind the first two."""
    transpose = only_reader(last.outputs[0])
    if transpose is None or transpose.op_type != "Transpose" or not rw.is_standard(transpose):
        return None
    if rw.view(transpose).attr("perm") != (0, 2, 1, 3):
        return None
    return joining(transpose.outputs[0], rw)


def joining(apart: ir.Value, rw: Rewriter) -> ir.Node | None:
    """The Reshape that alone reads a value of [batch, length, heads, size], where it copies none of the last two."""
    reshape = only_reader(apart)
    if reshape is None or reshape.op_type != "Reshape" or not rw.is_standard(reshape):
        return None
    operand = reshape.inputs[1]
    target = rw.shapes.contents(operand) if operand is not None and constant(operand) is None else constant(operand)
    if target is None or not all(isinstance(dim, (int, np.integer)) and dim != 0 for dim in target[2:]):
        return None
    return reshape
