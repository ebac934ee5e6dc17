"""merge-reshapes: chains of Reshape, Squeeze, Unsqueeze and Transpose become one node, or none."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import Dim, Dims, same_dim, same_dims
from .layout_agnostic import REDUCTIONS
from .matching import only_reader
from .rewriter import Rewriter, inherit
from .rules import apply_rules, forward, rule, rules_in
from .view import RUNTIME, constant

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that keep every element where it is in row-major order."""


@dataclasses.dataclass(frozen=True)
class MergeReshapes:
    """One Reshape, Unsqueeze or Transpose instead of a chain; a reduction that keeps or drops its dims by itself.

    before:  g ─ Transpose ─ Transpose ─ a      s[16] ─ Unsqueeze(0) ─ Unsqueeze(2) ─ b      g ─ ReduceSum(keepdims=1) ─
             Reshape[16] ─ c
    after:   g ───────────────────────── a      s[16] ─ Unsqueeze(0, 2) ─────────── b      g ─ ReduceSum(keepdims=0) ─ c

    Only the order of elements and proved shapes count: nothing is computed otherwise, so every type and value is kept.
    """

    name: ClassVar[str] = "merge-reshapes"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


def _inner(node: ir.Node, rw: Rewriter) -> ir.Node | None:
    """The view that `node` views again."""
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    return producer if producer is not None and producer.op_type in _VIEWS and rw.is_standard(producer) else None


@rule("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def view_and_back(node: ir.Node, rw: Rewriter) -> bool:
    """A view of a view that has the shape of what is viewed → it."""
    inner, out = _inner(node, rw), node.outputs[0]
    source = inner.inputs[0] if inner is not None else None
    if source is None or not same_dims(source.shape, out.shape):
        return False
    return forward(node, rw, source, "view_and_back")


_EXTREMES = ("ArgMax", "ArgMin")
_REDUCTIONS = frozenset([*REDUCTIONS.split(), *_EXTREMES])


@rule("Reshape", "Squeeze", "Unsqueeze")
def reduction_drops_dims(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape or Squeeze of a reduction that kept its dims of size 1, to its shape without them → keepdims=0."""
    return _change_keepdims(node, rw, 1, "reduction_drops_dims")


@rule("Reshape", "Squeeze", "Unsqueeze")
def reduction_keeps_dims(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape or Unsqueeze of a reduction that dropped its dims, to its shape with them → keepdims=1."""
    return _change_keepdims(node, rw, 0, "reduction_keeps_dims")


def _change_keepdims(node: ir.Node, rw: Rewriter, keepdims: int, rule: str) -> bool:
    total, out = node.inputs[0], node.outputs[0]
    reduction = total.producer() if total is not None else None
    if total is None or reduction is None or reduction.op_type not in _REDUCTIONS or not rw.is_standard(reduction):
        return False
    source, view = reduction.inputs[0], rw.view(reduction)
    if view.attr("keepdims") != keepdims or source is None:
        return False
    if len(total.uses()) > 1 or total.is_graph_output() or reduction.graph is not node.graph:
        return rw.reject(rule, "the reduction is needed elsewhere, or in another graph")
    axes = (view.attr("axis"),) if reduction.op_type in _EXTREMES else view.ints("axes")
    if axes is RUNTIME or not source.shape:
        return rw.reject(rule, "the axes or the rank are not known, or there are none")
    rank = len(source.shape)
    if not axes:
        if "noop_with_empty_axes" in reduction.attributes:
            return False
        axes = tuple(range(rank))
    dropped = {axis % rank for axis in axes}
    if keepdims:
        expected: list[Dim] = [dim for i, dim in enumerate(source.shape) if i not in dropped]
    else:
        expected = [1 if i in dropped else dim for i, dim in enumerate(source.shape)]
    if out.shape is None or not same_dims(ir.Shape(expected), out.shape):
        return rw.reject(rule, "the result is not proved to have the shape that the reduction would give")
    kept = [attr for name, attr in reduction.attributes.items() if name != "keepdims"]
    fused = rw.op(reduction.op_type, *reduction.inputs, at=node, attributes=kept, keepdims=1 - keepdims)
    inherit(fused, reduction)
    rw.replace(node, fused.outputs[0])
    return True


@rule("Reshape")
def reshape_of_view(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape of a Reshape, Squeeze, Unsqueeze or Flatten → Reshape of what that one viewed."""
    inner = _inner(node, rw)
    if inner is None or inner.inputs[0] is None or (rw.opset(node) or 0) < 5:
        return False
    target = constant(node.inputs[1])
    if target is None or np.any(target == 0):  # 0 copies a dim of the input
        return _reshape(node, inner, rw, "reshape_of_view")
    rw.set_input(node, 0, inner.inputs[0])
    return True


@rule("Transpose")
def transpose_as_view(node: ir.Node, rw: Rewriter) -> bool:
    """Transpose beside another view, that moves dims of size 1 alone → Reshape, which is merged with that one."""
    source, out, perm = node.inputs[0], node.outputs[0], rw.view(node).attr("perm")
    if source is None or source.shape is None or not isinstance(perm, tuple) or (rw.opset(node) or 0) < 5:
        return False
    moved = [axis for axis in perm if axis < len(source.shape) and source.shape[axis] != 1]
    if moved != sorted(moved) or list(perm) == sorted(perm):
        return False
    inner, reader = _inner(node, rw), only_reader(out)
    if inner is None and (reader is None or reader.op_type not in _VIEWS or not rw.is_standard(reader)):
        return False
    target = _target(out.shape)
    if target is None:
        return rw.reject("transpose_as_view", "more than one symbolic dim, or one that may be 0")
    rw.replace(node, rw.op("Reshape", source, at=node, shape=target).outputs[0])
    return True


@rule("Reshape")
def product_of_rows(node: ir.Node, rw: Rewriter) -> bool:
    """Reshape(MatMul(Reshape(x), w)), where x[…, K] is made a matrix and the result […, N] again → MatMul(x, w)."""
    matmul = rw.producer(node.inputs[0], "MatMul")
    rows = rw.producer(matmul.inputs[0], "Reshape") if matmul is not None else None
    source, out = rows.inputs[0] if rows is not None else None, node.outputs[0]
    if matmul is None or rows is None or source is None or source.shape is None or out.shape is None:
        return False
    flat, product, weight = rows.outputs[0], matmul.outputs[0], matmul.inputs[1]
    if weight is None or weight.shape is None or len(weight.shape) != 2 or flat.shape is None or len(flat.shape) != 2:
        return False
    if len(product.uses()) > 1 or product.is_graph_output() or matmul.graph is not node.graph:
        return rw.reject("product_of_rows", "the product of the matrix is needed elsewhere, or in another graph")
    as_before = same_dims(ir.Shape(list(source.shape)[:-1]), ir.Shape(list(out.shape)[:-1]))
    if len(source.shape) < 2 or not as_before or not same_dim(source.shape[-1], weight.shape[0]):
        return rw.reject("product_of_rows", "the leading dims are not proved to be those of before")
    if not same_dim(out.shape[-1], weight.shape[1]) or not same_dim(flat.shape[1], source.shape[-1]):
        return rw.reject("product_of_rows", "the last dim is not proved to stay")
    new = rw.op("MatMul", source, weight, at=node)
    inherit(new, matmul)
    rw.replace(node, new.outputs[0])
    return True


def _reshape(node: ir.Node, inner: ir.Node, rw: Rewriter, rule: str) -> bool:
    target = _target(node.outputs[0].shape)
    if target is None:
        return rw.reject(rule, "more than one symbolic dim, or one that may be 0")
    rw.replace(node, rw.op("Reshape", inner.inputs[0], at=node, shape=target).outputs[0])
    return True


def _target(dims: Dims | None) -> np.ndarray | None:
    """A Reshape target for these dims that does not look at the input: positive ints, and -1 for one symbol."""
    if dims is None or sum(not isinstance(dim, int) for dim in dims) > 1 or any(dim == 0 for dim in dims):
        return None
    return np.array([dim if isinstance(dim, int) else -1 for dim in dims], np.int64)


@rule("Unsqueeze")
def unsqueeze_twice(node: ir.Node, rw: Rewriter) -> bool:
    """Unsqueeze(Unsqueeze(x)) → Unsqueeze(x)."""
    return _merge_axes(node, rw, "Unsqueeze", "unsqueeze_twice")


@rule("Squeeze")
def squeeze_twice(node: ir.Node, rw: Rewriter) -> bool:
    """Squeeze(Squeeze(x)) → Squeeze(x)."""
    return _merge_axes(node, rw, "Squeeze", "squeeze_twice")


def _merge_axes(node: ir.Node, rw: Rewriter, op_type: str, rule: str) -> bool:
    first = rw.producer(node.inputs[0], op_type)
    if first is None or first.inputs[0] is None:
        return False
    if first.inputs[0].shape is None:
        return rw.reject(rule, "the rank is not known")
    axes, inner_axes, rank = rw.view(node).ints("axes"), rw.view(first).ints("axes"), len(first.inputs[0].shape)
    if not isinstance(axes, tuple) or not isinstance(inner_axes, tuple):
        return rw.reject(rule, "the axes are not constant")
    if op_type == "Unsqueeze":
        middle = rank + len(inner_axes)
        whole = middle + len(axes)
        added = {axis % whole for axis in axes}
        places = [i for i in range(whole) if i not in added]  # where each dim of the middle value ends up
        merged = sorted(added | {places[axis % middle] for axis in inner_axes})
    else:
        kept = [i for i in range(rank) if i not in {axis % rank for axis in inner_axes}]
        merged = sorted({axis % rank for axis in inner_axes} | {kept[axis % len(kept)] for axis in axes})
    fused = rw.op(op_type, first.inputs[0], at=node, axes=merged)
    rw.replace(node, fused.outputs[0])
    return True


@rule("Squeeze", "Unsqueeze", "Flatten")
def view_of_view(node: ir.Node, rw: Rewriter) -> bool:
    """Squeeze, Unsqueeze or Flatten of another view that nobody else reads → one Reshape."""
    inner = _inner(node, rw)
    if inner is None or (rw.opset(node) or 0) < 5:
        return False
    if len(inner.outputs[0].uses()) > 1 or inner.outputs[0].is_graph_output():
        return rw.reject("view_of_view", "the view in between is needed elsewhere")
    return _reshape(node, inner, rw, "view_of_view")


@rule("Transpose")
def transpose_twice(node: ir.Node, rw: Rewriter) -> bool:
    """Transpose(Transpose(x)) → Transpose(x), or x."""
    inner = rw.producer(node.inputs[0], "Transpose")
    if inner is None or inner.inputs[0] is None:
        return False
    perms = [permutation(each, rw) for each in (inner, node)]
    if perms[0] is None or perms[1] is None:
        return rw.reject("transpose_twice", "the order of the axes is not known")
    perm = [perms[0][i] for i in perms[1]]
    source, out = inner.inputs[0], node.outputs[0]
    if perm == sorted(perm) and rw.can_replace(out, source):
        rw.replace(node, source)
        return True
    fused = rw.op("Transpose", source, at=node, perm=perm)
    rw.replace(node, fused.outputs[0])
    return True


def permutation(node: ir.Node, rw: Rewriter) -> list[int] | None:
    """The perm of a Transpose, the default one spelled out; None when it is not known."""
    perm = rw.view(node).attr("perm")
    if perm is RUNTIME:
        return None
    if perm is not None:
        return list(perm)
    source = node.inputs[0]
    return None if source is None or source.shape is None else list(range(len(source.shape)))[::-1]


@rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def reduction_of_single_numbers(node: ir.Node, rw: Rewriter) -> bool:
    """A reduction that drops dims of size 1, and reduces nothing else → Squeeze."""
    source, view = node.inputs[0], rw.view(node)
    axes = view.ints("axes")
    if source is None or source.shape is None or view.attr("keepdims") != 0 or not isinstance(axes, tuple) or not axes:
        return False
    if not all(same_dim(source.shape[axis], 1) for axis in axes):
        return False
    rw.replace(
        node, rw.op("Squeeze", source, at=node, axes=sorted(axis % len(source.shape) for axis in axes)).outputs[0]
    )
    return True


RULES = rules_in(globals())
