"""Moves the nodes of a training step into the body of a Scan, whose batches and state are inputs of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.passes.effects import bodies
from pfvm.passes.loops import STEPS

from .importer import DECLARED_SHAPE
from .signature import StateEntry

_WIDE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclasses.dataclass(frozen=True)
class Roles:
    """What the step's inputs and outputs are: `carried` (input, output) pairs, `batches`, `seeds`, and `results`."""

    carried: tuple[tuple[ir.Value, int], ...]
    batches: tuple[ir.Value, ...]
    seeds: tuple[ir.Value, ...]
    results: tuple[int, ...]

    @classmethod
    def of(cls, graph: ir.Graph, state: list[StateEntry], per_step: Collection[str]) -> Roles:
        inputs = {v.name: v for v in graph.inputs}
        position = {v.name: i for i, v in enumerate(graph.outputs)}
        named = {entry.name for entry in state}
        carried = tuple((inputs[e.name], position[e.output]) for e in state if e.output)
        updates = {i for _, i in carried}
        return cls(
            carried,
            tuple(
                v
                for v in graph.inputs
                if v.name in per_step or (v.name not in named and v.name not in graph.initializers)
            ),
            tuple(inputs[e.name] for e in state if e.kind == "rng" and not e.output and e.name not in per_step),
            tuple(i for i in range(len(graph.outputs)) if i not in updates),
        )


class StepBuilder:
    """Moves the nodes of a graph into the body of a Scan."""

    def __init__(self, model: ir.Model, roles: Roles, steps: int) -> None:
        self._graph = model.graph
        self._roles = roles
        self._steps = steps
        self._names = _names(model)

    def build(self) -> None:
        graph, roles = self._graph, self._roles
        nodes, outputs = list(graph), list(graph.outputs)
        inner = {value: self._inner(value) for value in (*(v for v, _ in roles.carried), *roles.batches)}
        counter = ir.Value(name=self._unique("step_number"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        seeding = [node for value in roles.seeds for node in self._advance(value, counter)]
        graph.remove(nodes)
        graph.outputs.clear()
        order = [*(i for _, i in roles.carried), *roles.results]
        outer = {i: ir.Value(name=outputs[i].name, type=outputs[i].type) for i in order}
        results, copies = self._results([outputs[i] for i in order], inner)
        body = ir.Graph(
            [*inner.values(), counter],
            results,
            nodes=[*seeding, *nodes, *copies],
            name="step",
            opset_imports=graph.opset_imports,
        )
        scan = ir.Node(
            "",
            "Scan",
            [*inner, self._numbers()],
            [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(roles.batches) + 1)],
            outputs=list(outer.values()),
            name=self._unique("steps"),
            metadata_props={STEPS: str(self._steps)},
        )
        graph.append(scan)
        graph.outputs.extend(outer[i] for i in range(len(outputs)))

    def _results(self, values: list[ir.Value], inner: dict[ir.Value, ir.Value]) -> tuple[list[ir.Value], list[ir.Node]]:
        """The body's outputs, renamed, since the Scan's have their names; a body computes its outputs, each once."""
        results: list[ir.Value] = []
        copies: list[ir.Node] = []
        for value in values:
            if value.producer() is None or value in results:
                copies.append(self._copy(inner.get(value, value)))
                value = copies[-1].outputs[0]
            else:
                value.name = self._unique(f"{value.name}_step")
            if value.shape is not None:  # ONNX Runtime's Scan asks for one
                value.meta[DECLARED_SHAPE] = value.shape
            results.append(value)
        return results, copies

    def _inner(self, value: ir.Value) -> ir.Value:
        """The body's input in the place of an input of the step, which keeps its name outside."""
        inner = ir.Value(name=self._unique(f"{value.name}_step"), type=value.type, shape=value.shape)
        if value.shape is not None:
            inner.meta[DECLARED_SHAPE] = value.shape
        value.replace_all_uses_with(inner)
        return inner

    def _copy(self, value: ir.Value) -> ir.Node:
        node = ir.Node("", "Identity", [value], name=self._unique("handed_on"))
        copy = node.outputs[0]
        copy.name, copy.type, copy.shape = self._unique(f"{value.name}_handed_on"), value.type, value.shape
        return node

    def _advance(self, seed: ir.Value, counter: ir.Value) -> list[ir.Node]:
        """Nodes that compute seed + number of the step, in 64 bits where ONNX has no sum of the seed's type."""
        users = list(seed.uses())
        dtype = seed.dtype or ir.DataType.INT64
        wide = dtype if dtype in _WIDE else ir.DataType.INT64
        nodes: list[ir.Node] = []

        def op(kind: str, *operands: ir.Value, **attributes: int) -> ir.Value:
            node = ir.node(kind, list(operands), attributes, name=self._unique(f"{seed.name}_{kind}"))
            node.outputs[0].name = self._unique(f"{seed.name}_step")
            nodes.append(node)
            return node.outputs[0]

        def cast(value: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
            return value if source == target else op("Cast", value, to=int(target))

        number = cast(counter, ir.DataType.INT64, wide)
        advanced = cast(op("Add", cast(seed, dtype, wide), number), wide, dtype)
        for use in users:
            use.node.replace_input_with(use.idx, advanced)
        return nodes

    def _numbers(self) -> ir.Value:
        """0 … K-1, which also tells a Scan without batches how often to run."""
        return self._constant(np.arange(self._steps, dtype=np.int64), "step_numbers")

    def _constant(self, array: np.ndarray[Any, Any], name: str) -> ir.Value:
        tensor = ir.tensor(array, name=self._unique(name))
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        self._graph.initializers.add(value)
        return value

    def _unique(self, hint: str) -> str:
        name, count = hint, 0
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name


def _names(model: ir.Model) -> set[str]:
    def of(graph: ir.Graph) -> Iterable[str | None]:
        yield from (v.name for v in (*graph.inputs, *graph.initializers.values(), *graph.outputs))
        for node in graph:
            yield node.name
            yield from (v.name for v in node.outputs)
            for body in bodies(node):
                yield from of(body)

    return {name for name in of(model.graph) if name}
