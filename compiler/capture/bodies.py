"""Bodies of control flow: torch.cond, while_loop and scan → If, Loop and Scan.

A body reads values of the graph around it by name, as ONNX allows: tensors from outside are no inputs of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.utils._pytree as pytree
from pfvm.compiler.importer import DECLARED_SHAPE
from pfvm.errors import CaptureError
from torch._subclasses.fake_tensor import FakeTensor

from .aten.registry import rule
from .emit import Arg, Emitter
from .functional import make_functional
from .source import origin_of_node
from .translate import describe_value, translate

ops = torch.ops.higher_order
Node = torch.fx.Node
Graph = torch.fx.GraphModule


def functional_bodies(graph: Graph, mode: Any, is_dynamic: bool) -> None:
    """Take in-place updates out of every body in the graph, and of those in them."""
    for node in graph.graph.find_nodes(op="get_attr"):
        body = getattr(graph, str(node.target))
        if isinstance(body, FakeTensor):
            raise CaptureError(
                f"{origin_of_node(next(iter(node.users))).where}: a body of torch.cond, while_loop or scan reads a "
                "tensor from outside in a way that the trace does not see; hand it to the body as an argument"
            )
        if not isinstance(body, Graph):
            continue
        output = body.graph.output_node()
        output.args = (tuple(pytree.tree_leaves(output.args[0])),)
        placeholders = body.graph.find_nodes(op="placeholder")
        names = [n.name for n in placeholders]
        body, _ = make_functional(body, mode, names, len(placeholders), is_dynamic)
        setattr(graph, str(node.target), body)
        functional_bodies(body, mode, is_dynamic)


@rule(ops.cond)
def cond(e: Emitter, node: Node, pred: Arg, true_graph: Node, false_graph: Node, operands: Sequence[Arg]) -> Any:
    test = _scalar(e, pred)
    outside = [e.tensor(o) for o in operands]
    branches = {}
    for name, source in (("then_branch", true_graph), ("else_branch", false_graph)):
        graph = e.values[source]
        with _inside(e):
            results = _inlined(e, graph, outside)
            branches[name] = _body(e, node, name, [], results)
    return _listed(e.op("If", test, outputs=len(branches["then_branch"].outputs), **branches))


@rule(ops.while_loop)
def while_loop(
    e: Emitter, node: Node, test: Node, body: Node, carried: Sequence[Arg], outside: Sequence[Arg], **_: Any
) -> Any:
    condition, step = e.values[test], e.values[body]
    more = [e.tensor(o) for o in outside]
    init = [e.tensor(c) for c in carried]
    (first,) = _inlined(e, condition, [*init, *more])
    placeholders = step.graph.find_nodes(op="placeholder")[: len(init)]
    with _inside(e):
        number = _input(e, node, "number", torch.zeros((), dtype=torch.int64))
        going = _input(e, node, "going", torch.zeros((), dtype=torch.bool))
        values = [_input(e, node, f"carried_{i}", p.meta["val"]) for i, p in enumerate(placeholders)]
        results = _inlined(e, step, [*values, *more])
        (again,) = _inlined(e, condition, [*results, *more])
        inner = _body(e, node, "body", [number, going, *values], [again, *results])
    return _listed(e.op("Loop", None, first, *init, outputs=len(init), body=inner))


@rule(ops.scan)
def scan(e: Emitter, node: Node, combine: Node, init: Sequence[Arg], xs: Sequence[Arg], outside: Sequence[Arg]) -> Any:
    step = e.values[combine]
    more = [e.tensor(o) for o in outside]
    placeholders = step.graph.find_nodes(op="placeholder")[: len(init) + len(xs)]
    start = [e.tensor(v) for v in (*init, *xs)]
    with _inside(e):
        values = [_input(e, node, f"step_{i}", p.meta["val"]) for i, p in enumerate(placeholders)]
        inner = _body(e, node, "body", values, _inlined(e, step, [*values, *more]))
    return _listed(e.op("Scan", *start, outputs=len(inner.outputs), body=inner, num_scan_inputs=len(xs)))


def _listed(made: Any) -> list[ir.Value]:
    return made if isinstance(made, list) else [made]


def _scalar(e: Emitter, pred: Arg) -> ir.Value:
    """A condition of one element, as If takes it."""
    value = e.tensor(pred, torch.bool)
    seen = pred.meta["val"] if isinstance(pred, Node) else pred
    rank = seen.ndim if isinstance(seen, torch.Tensor) else 0
    return e.op("Reshape", value, e.ints([], "shape")) if rank else value


@contextlib.contextmanager
def _inside(e: Emitter) -> Iterator[None]:
    """What is emitted within goes into a body, which nobody outside reads."""
    with e.nested():
        yield


def _inlined(e: Emitter, graph: Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """The nodes of a body's graph, here. A graph may be written out twice: its values are those of the last time."""
    for placeholder, value in zip(graph.graph.find_nodes(op="placeholder"), arguments):
        e.bind(placeholder, value)
    return [value if isinstance(value, ir.Value) else e.tensor(node) for node, value in translate(e, graph)]


def _input(e: Emitter, node: Node, label: str, like: torch.Tensor) -> ir.Value:
    value = ir.Value(name=e.names.take(f"{node.name}.{label}"))
    describe_value(value, like, e.symbols)
    return value


def _body(e: Emitter, node: Node, name: str, inputs: Sequence[ir.Value], results: Sequence[ir.Value]) -> ir.Graph:
    """A graph of the nodes that have been emitted inside; a body computes its outputs, each once."""
    e.begin(node)
    outputs: list[ir.Value] = []
    for value in results:
        if value.producer() not in e.nodes or value in outputs:
            copy = e.op("Identity", value)
            copy.shape, copy.type = value.shape, value.type
            value = copy
        if value.shape is not None:  # ONNX Runtime's Scan asks for one, where inference finds none too
            value.meta[DECLARED_SHAPE] = value.shape
        outputs.append(value)
    return ir.Graph(inputs, outputs, nodes=e.nodes, name=f"{node.name}.{name}")
