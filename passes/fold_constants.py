"""fold-constants: compute at compile time what does not depend on the inputs."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Container, Mapping
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from . import numpy_ops
from .constant_subgraph import RULE, Evaluate, evaluate_constants
from .dims import Dims, same_dim, static_shape
from .effects import Effect, bodies
from .rewriter import Rewriter
from .view import constant, constant_tensor, is_parameterized

# Larger intermediate results are not computed, whatever becomes of them.
_LARGEST_RESULT = 2**28
GROWN = "pfvm.grown"
"""Metadata of a model of which folding has refused some results: the bytes that the others have added to it."""
_HANDED_OUT = "a body or a function must compute what it hands out"
# Folding these would turn quantized weights back into floats.
_QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


@dataclasses.dataclass(frozen=True)
class FoldConstants:
    """Fold constant subgraphs, known shape arithmetic, and computed Reshape targets, at no cost in model bytes.

    before:  x[N,1,32,32] ─ Shape ─ Gather(0) ─ Concat([·, 1024]) ─┐     after:  x ─ Reshape([-1, 1024])
             x ────────────────────────────────────────────── Reshape

    Integers, booleans and data movement are folded exactly in numpy; floating point arithmetic in one call of the
    evaluator that the compiler was given (left alone without one). A result is folded only when it is at most
    `slack` bytes larger than the constants that die with it, and all of a compilation add at most `max_growth` bytes
    to the model. Quantized weights stay quantized, and overridable initializers, random and training-mode nodes are
    never folded.
    """

    name: ClassVar[str] = "fold-constants"
    slack: int = 1024
    max_growth: int = 2**20

    def within(self, max_growth: int) -> FoldConstants:
        """The pass with the whole of `max_growth` bytes for one result, or for many."""
        return dataclasses.replace(self, slack=max_growth, max_growth=max_growth)

    def run(self, rw: Rewriter, evaluate: Evaluate | None = None) -> None:
        recorded = rw.model.metadata_props.get(GROWN, "")
        rw.grown = max(rw.grown, float(recorded) if recorded.isdecimal() else 0.0)
        _fold_known_contents(rw)
        _fold_reshape_targets(rw)
        by_root: dict[ir.Graph, list[ir.Node]] = collections.defaultdict(list)
        for node in _foldable(rw, evaluate is not None):
            assert node.graph is not None
            by_root[rw.root(node.graph)].append(node)
        for root, nodes in by_root.items():
            _fold(rw, root, nodes, evaluate, self)


# ---- contents known from shapes


def _fold_known_contents(rw: Rewriter) -> None:
    """Replace integer tensors whose every element follows from static shapes."""
    for graph in list(rw.scopes()):
        for node in list(graph):
            if node.graph is None or len(node.outputs) != 1 or node.op_type == "Constant" or not rw.is_standard(node):
                continue
            out = node.outputs[0]
            known = rw.shapes.contents(out)
            if known is None or not all(isinstance(d, int) for d in known) or bodies(node):
                continue
            shape = static_shape(out)
            if shape is None or len(shape) > 1 or math.prod(shape) != len(known) or out.dtype is None:
                continue
            if rw.effect(node) is not Effect.PURE:
                continue
            if _must_compute(rw, node):
                rw.reject(RULE, _HANDED_OUT, node)
                continue
            array = np.array(list(known), dtype=np.int64).astype(out.dtype.numpy()).reshape(shape)
            _replace(rw, node, array)


def _fold_reshape_targets(rw: Rewriter) -> None:
    """A computed Reshape target with known dims becomes constant: 0 copies a dim, −1 stands for one symbolic dim."""
    for graph in list(rw.scopes()):
        for node in list(graph):
            if node.graph is None or node.op_type != "Reshape" or not rw.is_standard(node) or (rw.opset(node) or 0) < 5:
                continue
            target = node.inputs[1]
            if target is None or constant(target) is not None or target.shape is None or len(target.shape) != 1:
                continue
            dims = rw.shapes.contents(target)
            array = None if dims is None else _reshape_target(dims, node.inputs[0], node)
            if array is None:
                rw.reject("computed Reshape target", "more of its dims are unknown than a target can leave open", node)
                continue
            rw.set_input(node, 1, rw.constant(array, f"{target.name}_static", node))
            producer = target.producer()
            if producer is not None and rw.is_dead(producer):
                rw.erase(producer)
            rw.matched("computed Reshape target")


def _reshape_target(dims: Dims, source: ir.Value | None, node: ir.Node) -> np.ndarray | None:
    """None when the dims need more than ONNX can say. No -1 is put beside a copied dim, which may be 0.

    One that stands there stays: with a dim of 0 it fails as before.
    """
    if source is None or source.shape is None or is_parameterized(node) or node.attributes.get_int("allowzero"):
        return None
    if sum(not isinstance(dim, int) for dim in dims) == 1 and all(dim != 0 and dim != -1 for dim in dims):
        (symbolic,) = (i for i, dim in enumerate(dims) if not isinstance(dim, int))
        copied = symbolic < len(source.shape) and same_dim(dims[symbolic], source.shape[symbolic])
        return np.array([dim if isinstance(dim, int) else 0 if copied else -1 for dim in dims], np.int64)
    if not all(
        isinstance(d, int) or (i < len(source.shape) and same_dim(d, source.shape[i])) for i, d in enumerate(dims)
    ):
        return None
    # A literal 0 copies the dim of the input, as it did before.
    return np.array([dim if isinstance(dim, int) else 0 for dim in dims], np.int64)


# ---- constant subgraphs


def _foldable(rw: Rewriter, with_floats: bool) -> list[ir.Node]:
    """Nodes that depend on constants only, producers first."""
    found: list[ir.Node] = []
    ready: set[ir.Value] = set()
    for graph in rw.scopes():
        for node in graph:
            if node.op_type == "Constant" or not all(
                v is None or v in ready or constant_tensor(v) is not None for v in node.inputs
            ):
                continue
            why = _obstacle(rw, node) or ("" if with_floats or _exact(node) else "there is no engine to compute it")
            if why:
                rw.reject(RULE, why, node)
            else:
                found.append(node)
                ready.update(node.outputs)
    return found


def _obstacle(rw: Rewriter, node: ir.Node) -> str:
    """Why a node of constant inputs cannot be folded; empty when it can."""
    if node.op_type in _QUANTIZATION:
        return "quantized weights stay quantized"
    if rw.effect(node) is not Effect.PURE:
        return "it draws numbers, is in training mode, or nobody described it"
    if not rw.is_standard(node) or bodies(node):
        return "it is a function or operator of another domain, or has a body"
    if is_parameterized(node):
        return "an attribute is a parameter of the function"
    values = [v for v in node.inputs if v is not None] + [out for out in node.outputs if out.name]
    if any(not isinstance(v.type, ir.TensorType) or v.dtype == ir.DataType.STRING for v in values):
        return "strings, sequences and what has no known type stay"
    if any(out.dtype is None for out in node.outputs if out.name):
        return "its type is not known"
    if any(math.inf > _bytes(out) > _LARGEST_RESULT for out in node.outputs):
        return "the result is too large to compute here"
    return _HANDED_OUT if _must_compute(rw, node) else ""


def _must_compute(rw: Rewriter, node: ir.Node) -> bool:
    """Whether a graph output that the node makes needs a node: a body's or a function's, or before IR version 4."""
    is_output = any(out.is_graph_output() for out in node.outputs)
    return is_output and (node.graph is not rw.model.graph or rw.model.ir_version < 4)


def _exact(node: ir.Node) -> bool:
    return node.op_type in numpy_ops.MOVES or node.op_type in numpy_ops.ARITHMETIC


def _bytes(value: ir.Value) -> float:
    """Size by inferred shape; infinite when unknown and yet to be computed."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return tensor.nbytes
    shape = static_shape(value)
    if shape is None or value.dtype is None:
        return math.inf
    return math.prod(shape) * value.dtype.itemsize


def _fold(rw: Rewriter, root: ir.Graph, nodes: list[ir.Node], evaluate: Evaluate | None, limits: FoldConstants) -> None:
    """Evaluate the constant nodes of one scope and replace those whose result may be stored."""
    reclaimed = _reclaimed_bytes(nodes)
    slack = limits.slack
    chosen = _within_budget(rw, nodes, reclaimed, slack)
    needed = [out for node in nodes if node in chosen for out in node.outputs if _read_outside(out, chosen)]
    known = _evaluate(rw, root, _producers_of(needed, nodes), needed, evaluate)
    for node in reversed(nodes):
        wanted = [out for out in node.outputs if out.uses() or out.is_graph_output()]
        if node not in chosen or node.graph is None or not wanted or not all(out in known for out in wanted):
            continue
        if not all(known[out].dtype == out.dtype.numpy() for out in wanted if out.dtype is not None):
            rw.reject(RULE, "the evaluated type differs from the inferred one", node)
        elif any(_bytes(out) == math.inf and known[out].nbytes > reclaimed[out] + slack for out in wanted):
            rw.reject(RULE, "the result would grow the model", node)
        elif not _charge(rw, sum(known[out].nbytes - reclaimed[out] for out in wanted), limits.max_growth):
            rw.reject(RULE, "all results together would grow the model by more than max_growth", node)
        else:
            _replace(rw, node, *[known.get(out) for out in node.outputs])


def _charge(rw: Rewriter, size: float, limit: int) -> bool:
    """Whether the model may grow by `size` bytes more; what takes no more than a node does (64 bytes) is free.

    A model that may not is marked with what it has grown by, so that compiling the output again folds no more.
    """
    if size <= 64:
        return True
    if rw.grown + size > limit:
        rw.model.metadata_props[GROWN] = str(math.ceil(rw.grown))
        return False
    rw.grown += size
    return True


def _read_outside(value: ir.Value, nodes: Container[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _within_budget(rw: Rewriter, nodes: list[ir.Node], reclaimed: Mapping[ir.Value, float], slack: int) -> set[ir.Node]:
    """All nodes but those whose result would have to be stored and is too large; these stay, to be computed."""
    chosen = set(nodes)
    for node in reversed(nodes):
        for out in node.outputs:
            if math.inf > _bytes(out) > reclaimed[out] + slack and _read_outside(out, chosen):
                rw.reject(RULE, "the result would grow the model", node)
                chosen.discard(node)
    return chosen


def _reclaimed_bytes(nodes: list[ir.Node]) -> dict[ir.Value, float]:
    """A lower bound of the constant bytes that die when a value is folded: those that only nodes before it read.

    What several nodes read dies at its post-dominator, where all paths from it meet: an LSTM's weights, cut into gates
    and put together in another order, die with the new ones. nodes: in topological order.
    """
    post_dominators: dict[ir.Node, ir.Node | None] = {}  # the immediate ones
    depths: dict[ir.Node | None, int] = {None: 0}
    for node in reversed(nodes):
        readers = [reader for out in node.outputs for reader in _readers(out)]
        post_dominators[node] = _post_dominator(readers, post_dominators, depths)
        depths[node] = depths[post_dominators[node]] + 1
    total = dict.fromkeys(nodes, 0.0)
    for value in {v for node in nodes for v in node.inputs if v is not None and v.producer() not in total}:
        last = _post_dominator(_readers(value), post_dominators, depths)
        if last is not None:
            total[last] += _bytes(value)
    for node in nodes:
        after = post_dominators[node]
        if after is not None:
            total[after] += total[node]
    return {out: total[node] if len(node.outputs) == 1 else 0.0 for node in nodes for out in node.outputs}


def _readers(value: ir.Value) -> list[ir.Node | None]:
    """None stands for whoever reads a graph's output."""
    return [*([None] if value.is_graph_output() else []), *dict.fromkeys(use.node for use in value.uses())]


def _post_dominator(
    nodes: list[ir.Node | None],
    post_dominators: Mapping[ir.Node, ir.Node | None],
    depths: Mapping[ir.Node | None, int],
) -> ir.Node | None:
    """The first node that every path from `nodes` passes; None where one leaves what can be folded before that.

    depths: in the tree of post-dominators, whose root is None.
    """
    if not nodes or any(node not in post_dominators for node in nodes):
        return None
    last: ir.Node | None
    last, *others = sorted(nodes, key=lambda node: -depths[node])  # the deepest first: no path is walked twice
    for other in others:
        while last is not other:
            if last is not None and depths[last] >= depths[other]:
                last = post_dominators[last]
            elif other is not None:
                other = post_dominators[other]
    return last


def _producers_of(values: list[ir.Value], nodes: list[ir.Node]) -> list[ir.Node]:
    """Those of `nodes` that the values depend on, in order."""
    pending = set(values)
    found = []
    for node in reversed(nodes):
        if not pending.isdisjoint(node.outputs):
            found.append(node)
            pending.update(v for v in node.inputs if v is not None)
    return found[::-1]


def _evaluate(
    rw: Rewriter, root: ir.Graph, nodes: list[ir.Node], needed: list[ir.Value], evaluate: Evaluate | None
) -> dict[ir.Value, np.ndarray]:
    """Exactly in numpy as far as that goes; what is left in the engine."""
    known: dict[ir.Value, np.ndarray] = {}
    deferred: list[ir.Node] = []
    for node in nodes:
        operands = [None if v is None else known.get(v, constant(v)) for v in node.inputs]
        available = all(v is None or x is not None for v, x in zip(node.inputs, operands))
        result = numpy_ops.evaluate(rw.view(node), operands) if available else None
        if result is not None:
            known[node.outputs[0]] = result
        else:
            deferred.append(node)
    if evaluate is not None and deferred:
        known.update(evaluate_constants(rw, root, deferred, [v for v in needed if v not in known], known, evaluate))
    return known


def _replace(rw: Rewriter, node: ir.Node, *arrays: np.ndarray | None) -> None:
    """Replace a node by constants."""
    values = [
        None if array is None or not (out.uses() or out.is_graph_output()) else _constant(rw, array, out, node)
        for out, array in zip(node.outputs, arrays)
    ]
    rw.replace(node, *values)
    rw.matched(RULE)


def _constant(rw: Rewriter, array: np.ndarray, out: ir.Value, node: ir.Node) -> ir.Value:
    """A constant for `out`; a graph output's is never shared, for it takes over the output's name."""
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    return rw.constant(contiguous, f"{out.name}_folded", node, share=not out.is_graph_output())
