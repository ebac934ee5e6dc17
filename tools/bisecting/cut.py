"""A part of a graph as a model of its own: what it reads from outside becomes inputs, with the values of a real run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from pfvm.compiler.importer import read_model
from pfvm.errors import InputError, PfvmError
from pfvm.passes.effects import bodies, roots
from pfvm.passes.view import constant_tensor
from pfvm.runtime.oracle import Oracle
from pfvm.runtime.synthesis import workable
from pfvm.tools.intermediates import with_outputs


class Uncut(PfvmError):
    """The part cannot stand alone."""


@dataclass
class Cut:
    """A model of some nodes. feeds: sets of values for its inputs; those of the run come first."""

    proto: onnx.ModelProto
    feeds: list[dict[str, Any]]


class Model:
    """One state of a model, for cutting: where each graph stands, and the values of a run on `feeds`."""

    def __init__(self, model: ir.Model, feeds: Mapping[str, Any]) -> None:
        self.model, self._feeds = model, feeds
        self.owner: dict[ir.Graph, ir.Node] = {}
        self.root: dict[ir.Graph, ir.Graph] = {}
        for root in roots(model):
            self.root[root] = root
            for node in root.all_nodes():
                for body in bodies(node):
                    self.owner[body], self.root[body] = node, root
        self._known: dict[ir.Value, Any] = {}

    # ---- cutting

    def cut(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> Cut:
        """A model of these nodes of one graph, in their order; its outputs are what others read of them.

        Inside bodies and functions, made-up inputs come besides those of the run. Raises Uncut and other PfvmErrors.
        """
        part = _part(graph, nodes)
        feeds = []
        try:
            feeds.append(self.values(graph, part.inputs))
            self.values(graph, part.outputs)
        except PfvmError:
            if graph is self.model.graph:
                raise
        proto = self._proto(part)
        if graph is not self.model.graph:
            model = read_model(proto)
            with contextlib.suppress(InputError):  # the values of the run remain, or there are none
                feeds += [workable(model, Oracle(model), seed)[0] for seed in (0, 1)]
        return Cut(proto, feeds)

    def _proto(self, part: Part, need_types: bool = True) -> onnx.ModelProto:
        tensors = []
        for value in part.constants:
            tensor = constant_tensor(value)
            assert tensor is not None
            tensors.append(_tensor(tensor, value.name or ""))
        proto = onnx.ModelProto(ir_version=self.model.ir_version or 8, producer_name="pfvm bisect")
        proto.graph.CopyFrom(
            onnx.helper.make_graph(
                [ir.serde.serialize_node(node) for node in part.nodes],
                "part",
                [self._declared(v, True) for v in part.inputs],
                [self._declared(v, need_types) for v in part.outputs],
                tensors,
            )
        )
        opsets = dict(self.root[part.graph].opset_imports)
        for function in self._functions(part.nodes):
            proto.functions.append(ir.serde.serialize_function(function))
            opsets.setdefault(function.domain, 1)
        proto.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items())
        return proto

    def _declared(self, value: ir.Value, need_type: bool) -> onnx.ValueInfoProto:
        """Name, type and shape; what inference did not find, as the run had it: the rank, with open dims."""
        known = self._known.get(value)
        if (value.type is None or value.shape is None) and isinstance(known, (np.ndarray, np.generic)):
            dtype = value.dtype or ir.DataType.from_numpy(known.dtype)
            dims = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
            return onnx.helper.make_tensor_value_info(value.name or "", dtype.value, dims or [None] * known.ndim)
        if value.type is None and need_type:
            raise Uncut(f"the type of {value.name!r} is not known")
        return ir.serde.serialize_value(value)

    def _functions(self, nodes: Sequence[ir.Node]) -> list[ir.Function]:
        """Those that the nodes call, and those that these call."""
        found: dict[ir.OperatorIdentifier, ir.Function] = {}
        queue = [n for node in nodes for n in _with_bodies(node)]
        while queue:
            function = self.model.functions.get(queue.pop().op_identifier())
            if function is not None and function.identifier() not in found:
                found[function.identifier()] = function
                queue.extend(function.graph.all_nodes())
        return list(found.values())

    # ---- values

    def values(self, graph: ir.Graph, wanted: Sequence[ir.Value]) -> dict[str, Any]:
        """What these values are in the run, the first time that the graph runs. Raises PfvmError."""
        missing = [v for v in wanted if v not in self._known]
        if missing:
            self._evaluate(graph, missing)
        return {v.name or "": _array(self._known[v]) for v in wanted}

    def _evaluate(self, graph: ir.Graph, wanted: Sequence[ir.Value]) -> None:
        outside = [v for v in wanted if v.graph is not graph]
        own = [v for v in wanted if v.graph is graph]
        if graph is self.model.graph:
            computed = [v for v in own if v.producer() is not None]
            given = [v for v in own if v.producer() is None]
            for value in given:
                name = value.name or ""
                stored = None if value.const_value is None else value.const_value.numpy()
                self._known[value] = self._feeds.get(name, stored)
            if computed:
                watched = with_outputs(self.model, [v for v in computed if not v.is_graph_output()])
                results = Oracle(watched)(self._feeds)
                self._known.update({v: results[v.name or ""] for v in computed})
            return
        parent = self._call(graph) if graph not in self.owner else self.owner[graph]
        assert parent.graph is not None
        if outside:
            self.values(parent.graph, outside)
            self._known.update({v: self._known[v] for v in outside})
        self._enter(graph, parent)
        inner = [v for v in own if v not in self._known]
        if inner:
            whole = _part(graph, list(graph), all_outputs=True)
            feeds = self.values(graph, whole.inputs)
            results = Oracle(read_model(self._proto(whole, need_types=False)))(feeds)
            self._known.update({v: results[v.name or ""] for v in whole.outputs})

    def _call(self, graph: ir.Graph) -> ir.Node:
        """A node that calls the function whose graph this is."""
        function = next(f for f in self.model.functions.values() if f.graph is graph)
        for root in roots(self.model):
            for node in root.all_nodes():
                if node.op_identifier() == function.identifier():
                    return node
        raise Uncut(f"nobody calls {function.domain}::{function.name}")

    def _enter(self, graph: ir.Graph, parent: ir.Node) -> None:
        """The values of a graph's inputs when it first runs."""
        assert parent.graph is not None
        given = [v for v in parent.inputs if v is not None]
        constants = {v: tensor.numpy() for v in given if (tensor := constant_tensor(v)) is not None}
        known = self.values(parent.graph, [v for v in given if v not in constants])
        arguments = [None if v is None else constants.get(v, known.get(v.name or "")) for v in parent.inputs]
        if parent.op_type == "Loop" and not parent.domain:
            self._known.update(zip(graph.inputs, [np.int64(0), np.bool_(True), *arguments[2:]]))
        elif parent.op_type == "Scan" and not parent.domain:
            states = len(parent.inputs) - parent.attributes.get_int("num_scan_inputs", 0)
            axes = parent.attributes.get_ints("scan_input_axes", None) or [0] * (len(arguments) - states)
            rows = [np.take(np.asarray(a), 0, axis) for a, axis in zip(arguments[states:], axes)]
            self._known.update(zip(graph.inputs, [*arguments[:states], *rows]))
        else:
            self._known.update(zip(graph.inputs, arguments))


@dataclass
class Part:
    """Nodes of one graph, in order, and what they read and make for others. Constants become initializers."""

    graph: ir.Graph
    nodes: list[ir.Node]
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    constants: list[ir.Value]


def _part(graph: ir.Graph, nodes: Sequence[ir.Node], all_outputs: bool = False) -> Part:
    chosen = {node for node in nodes if constant_tensor(node.outputs[0] if node.outputs else None) is None}
    ordered = [node for node in graph if node in chosen]
    inside = {n for node in ordered for n in _with_bodies(node)}
    if any(attr.is_ref() for node in inside for attr in node.attributes.values()):
        raise Uncut("an attribute is that of the function around it")
    made = {out for node in inside for out in node.outputs}
    made |= {v for n in inside for body in bodies(n) for v in (*body.inputs, *body.initializers.values())}
    read = [v for node in ordered for n in _with_bodies(node) for v in n.inputs]
    read += [v for node in ordered for n in _with_bodies(node) for body in bodies(n) for v in body.outputs]
    outer = [v for v in dict.fromkeys(read) if v is not None and v not in made]
    outputs = [
        out
        for node in ordered
        for out in node.outputs
        if out.name and (all_outputs or out.is_graph_output() or any(u.node not in inside for u in out.uses()))
    ]
    if not outputs:
        outputs = [out for node in ordered[-1:] for out in node.outputs if out.name]
    inputs = [v for v in outer if constant_tensor(v) is None]
    return Part(graph, ordered, inputs, outputs, [v for v in outer if constant_tensor(v) is not None])


def _with_bodies(node: ir.Node) -> list[ir.Node]:
    return [node, *(inner for body in bodies(node) for inner in body.all_nodes())]


def _array(value: Any) -> Any:
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)


def _tensor(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """With its data inside, and under this name."""
    if isinstance(tensor, ir.StringTensor):
        proto = ir.serde.serialize_tensor(tensor)
    else:
        proto = ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=tensor.dtype))
    proto.name = name
    return proto
