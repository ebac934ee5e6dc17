"""One training step → K steps in one call: the step becomes the body of a Scan.

    x[b,3] ─┐                              x[K,b,3] ─┐
    w ──────┼─→ step ─→ loss[], new_w   ⇒  w ────────┼─→ Scan(step) ─→ loss[K], new_w (after the last step)
    lr ─────┘                              lr ───────┘

Which input is what follows from the state manifest. State with an output is carried from step to step; every other
required input is a batch, of which the new model takes K on a new leading axis; state without an output (a learning
rate, a frozen weight) has one value for all K steps. A seed without an output stands for seed, seed + 1, seed + 2, …
Initializers stay where they are: the body reads them from outside.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable

import numpy as np
import onnx
import onnx_ir as ir
from pfvm.errors import InvalidModelError, OptionError, UnsupportedOpError
from pfvm.passes.effects import bodies

from .forms import Model, in_form_of
from .importer import DECLARED_SHAPE, read_model
from .signature import MANIFEST_KEY, Interface, StateEntry, read_manifest

STEPS_KEY = "pfvm.steps_per_call"
"""Key in `metadata_props` of how many steps one call of the model runs."""

_SCAN_OPSET = 9  # before, Scan had a batch axis of its own
_WIDE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)


def loop(model: Model, steps: int, *, output: str | os.PathLike[str] | None = None) -> Model:
    """A training step as a model that runs `steps` of them in one call; the argument is not changed.

    model: a path (then `output=` is required, and returned), an onnx.ModelProto or an onnx_ir.Model, with a state
        manifest, as `pfvm.export` and `pfvm.grad` write it.
    steps: K, at least 1. Batch inputs get a leading axis of size K, and so do the outputs of every step, such as the
        loss. State goes in and comes out as for one step: the new model has the same names and the same manifest.

    Raises InvalidModelError (no manifest, state that nothing updates), OptionError (steps, output), UnsupportedOpError
    (an opset without Scan).
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"steps per call: expected an integer of at least 1, got {steps!r}")
    return in_form_of(model, "loop", output, lambda: loop_model(read_model(model), steps))


def loop_model(step: ir.Model, steps: int, per_step: Collection[str] = ()) -> ir.Model:
    """`loop`, for a model in normal form. `per_step` names state without an output that every step has a value of."""
    model = read_model(step)
    state = _checked_state(model)
    interface = Interface.of(model)
    roles = _Roles.of(model.graph, state, per_step)
    _Builder(model, roles, steps).build()
    for value in roles.batches:
        _stack_default(value, steps)
    _record(model, interface, roles, steps)
    model.metadata_props[STEPS_KEY] = str(steps)
    return model


def _checked_state(model: ir.Model) -> list[StateEntry]:
    if MANIFEST_KEY not in model.metadata_props:
        raise InvalidModelError(
            f"the model has no state manifest (metadata {MANIFEST_KEY!r}), which says what output updates what input: "
            "give a training step that pfvm captured, or make one with `pfvm grad`"
        )
    if STEPS_KEY in model.metadata_props:
        raise InvalidModelError(f"the model already runs {model.metadata_props[STEPS_KEY]} steps in a call")
    if model.graph.opset_imports.get("", 0) < _SCAN_OPSET:
        raise UnsupportedOpError(
            f"the model has opset {model.graph.opset_imports.get('')}, and Scan needs {_SCAN_OPSET}; "
            "convert it first: pfvm compile --opset 17"
        )
    state = read_manifest(model)
    for entry in state:
        if entry.kind == "optimizer" and entry.output is None:
            raise InvalidModelError(
                f"optimizer state {entry.name!r} has no output that updates it; name one in 'output'"
            )
    if not any(entry.output for entry in state):
        raise InvalidModelError(
            "no state of the model has an output that updates it: this is not a training step; make one of it with "
            "pfvm grad, or export a function that steps an optimizer"
        )
    updates = [entry.output for entry in state if entry.output]
    twice = sorted({name for name in updates if updates.count(name) > 1})
    if twice:
        raise InvalidModelError(f"output {twice[0]!r} updates two inputs of the state manifest")
    return state


@dataclasses.dataclass(frozen=True)
class _Roles:
    """What the step's inputs and outputs are: `carried` (input, output) pairs, `batches`, `seeds`, and `results`."""

    carried: tuple[tuple[ir.Value, int], ...]
    batches: tuple[ir.Value, ...]
    seeds: tuple[ir.Value, ...]
    results: tuple[int, ...]

    @classmethod
    def of(cls, graph: ir.Graph, state: list[StateEntry], per_step: Collection[str]) -> _Roles:
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


class _Builder:
    """Moves the nodes of a graph into the body of a Scan."""

    def __init__(self, model: ir.Model, roles: _Roles, steps: int) -> None:
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
        tensor = ir.tensor(np.arange(self._steps, dtype=np.int64), name=self._unique("step_numbers"))
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([self._steps]), const_value=tensor
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


def _record(model: ir.Model, step: Interface, roles: _Roles, steps: int) -> None:
    """The interface of the new model: that of the step, with a leading axis for batches and results."""
    batches = {v.name for v in roles.batches}
    results = {step.outputs[i].name for i in roles.results}
    new = Interface(
        tuple(_stacked(v, steps) if v.name in batches else v for v in step.inputs),
        tuple(_stacked(v, steps) if v.name in results else v for v in step.outputs),
    )
    new.record(model)
    declared = {v.name: v for v in (*new.inputs, *new.outputs)}
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.serde.deserialize_value_info_proto(declared[value.name or ""], None).shape


def _stack_default(value: ir.Value, steps: int) -> None:
    """The value that a file run alone takes: the step's, for every step."""
    if value.const_value is not None:
        one = value.const_value.numpy()
        value.const_value = ir.tensor(np.broadcast_to(one, (steps, *one.shape)).copy(), name=value.name)


def _stacked(value: onnx.ValueInfoProto, steps: int) -> onnx.ValueInfoProto:
    if value.type.WhichOneof("value") != "tensor_type":
        raise UnsupportedOpError(f"{value.name!r} is not a tensor: it cannot be stacked for several steps")
    new = onnx.ValueInfoProto()
    new.CopyFrom(value)
    if value.type.tensor_type.HasField("shape"):
        dims = list(value.type.tensor_type.shape.dim)
        del new.type.tensor_type.shape.dim[:]
        new.type.tensor_type.shape.dim.add(dim_value=steps)
        new.type.tensor_type.shape.dim.extend(dims)
    return new
