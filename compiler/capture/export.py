"""`export`: a PyTorch function or module as Exported ONNX (model.onnx)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.compiler.exporter import write_model
from pfvm.compiler.importer import read_model
from pfvm.compiler.signature import StateEntry, write_manifest
from pfvm.errors import CaptureError, PythonEffectWarning, short

from .dtypes import to_numpy, to_torch
from .element_types import OPSET
from .emit import Emitter
from .fake_swap import SWAP_LOCK
from .names import Names, short_names
from .numbers import NumberGuard, ReachedNumber
from .python_random import refuse_draws
from .reach import Place, ReachedTensor, walk
from .run import is_kept_gradient
from .source import line_of_function
from .structure import Structure, argument_names, arguments, describe
from .surroundings import watch
from .symbols import open_dimensions
from .trace import Trace, trace
from .translate import describe_value, translate
from .watch import Watch

IR_VERSION = 10


@dataclass(frozen=True)
class Exported:
    """A model with the nesting of its inputs and outputs, and the live tensor behind each weight.

    `states` and `numbers` are keyed by their names in the model; `frozen` says that they are constants there. `updates`
    gives the output that holds a state's next value. `size_outputs` are outputs that the function returns as Python
    numbers. `cleared`, `guards`, `constants` and `schedulers` are those of the trace; `asked` are numbers that guards
    are about and that are no inputs (a weight decay of 0). `surroundings` are the Python values that it bakes in.
    """

    model: ir.Model
    inputs: Structure
    outputs: Structure
    states: dict[str, ReachedTensor]
    numbers: dict[str, ReachedNumber]
    updates: dict[str, str]
    frozen: bool
    argument_names: tuple[str, ...]
    size_outputs: frozenset[str]
    cleared: tuple[ReachedTensor, ...]
    guards: tuple[NumberGuard, ...]
    constants: tuple[tuple[str, Any, Place], ...]
    modules: tuple[torch.nn.Module, ...]
    module_names: dict[int, str]
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    schedulers: tuple[Any, ...] = ()
    asked: tuple[ReachedNumber, ...] = ()
    surroundings: Watch = field(default_factory=Watch)


def export(
    fn: Callable[..., Any],
    sample: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    freeze: bool | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> ir.Model:
    """The one-to-one ATen translation of `fn`, optionally written to `path`.

    `fn` is a function or nn.Module; `sample` its only argument, or a tuple of positional arguments: tensors in any
    nesting of dicts, lists and tuples, of the shapes and dtypes that calls will have. `dynamic={"x": {0: "batch"}}`
    makes dimension 0 of input x symbolic. Weights become overridable initializers, described in
    metadata_props["pfvm.state"]; with `freeze` (default for an nn.Module) they become constants. No kernel runs, and
    nothing of the caller's changes.

    Raises CaptureError, naming the source line and what to write instead.
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise CaptureError(f"path is the file to write, not {short(path)}")
    model = capture(fn, sample, freeze=freeze, dynamic=dynamic).model
    if path is not None:
        write_model(read_model(model), path)
    return model


def capture(
    fn: Callable[..., Any],
    sample: Any,
    *,
    freeze: bool | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> Exported:
    """As `export`, keeping what a caller needs to feed the model."""
    if isinstance(fn, type):
        raise CaptureError(f"{fn.__name__} is a class; pass an instance of it, {fn.__name__}(…)")
    if not callable(fn):
        raise CaptureError(f"{short(fn)} is not a function or nn.Module")
    fn = getattr(fn, "_orig_mod", fn)  # what torch.compile wraps
    args = arguments(sample)
    arg_names = argument_names(fn, len(args), sample)
    inputs, given = describe(args, lambda v: isinstance(v, (torch.Tensor, np.ndarray)), "input", arg_names)
    samples = [to_torch(v) if isinstance(v, np.ndarray) else v for v in given]
    axes = open_dimensions(dynamic, inputs.tensor_names)
    with SWAP_LOCK:
        surroundings = watch(fn)
        reach = walk(fn, surroundings.functions)
        reach.put_back.append(surroundings.put_back)
        for reached in reach.tensors:
            if not torch.nn.parameter.is_lazy(reached.tensor):
                reached.tensor.detach()  # values that are on a device come now, not in the middle of the trace
        traced = trace(fn, inputs, samples, reach, axes)
        reach.drawn.update(dict.fromkeys(surroundings.drawn and [""]))
        refuse_draws(reach.drawn, line_of_function(fn))
        frozen = _is_frozen(fn, traced, freeze)
        builder = _Builder(traced, inputs, frozen, getattr(fn, "__name__", type(fn).__name__))
        model = builder.build()
        surroundings.hold_tensors([s.tensor for s in builder.states.values()])
        if any(s.kind == "param" or is_kept_gradient(s) for s in traced.updated):
            leaves = [s for s in traced.states if isinstance(s, ReachedTensor) and id(s.tensor) not in traced.flipped]
            surroundings.hold_flags([(s.name, s.tensor) for s in leaves])
    _warn_of_effects(fn, [*reach.changed, *surroundings.changed, *traced.lost])
    return Exported(
        model,
        inputs,
        builder.outputs,
        builder.states,
        builder.numbers,
        builder.updates,
        frozen,
        tuple(arg_names),
        frozenset(builder.size_outputs),
        tuple(traced.cleared),
        tuple(traced.guards),
        tuple(traced.constants),
        tuple(reach.modules),
        reach.module_names,
        tuple(optimizer for _, optimizer in reach.optimizers),
        tuple(traced.schedulers),
        _only_asked(traced, builder.numbers),
        surroundings,
    )


def _warn_of_effects(fn: Callable[..., Any], changed: list[str]) -> None:
    """Python values that the function sets stay as they are at a call of the graph."""
    names = ", ".join(map(repr, sorted(set(changed))[:5]))
    if names:
        warnings.warn(
            f"{line_of_function(fn)}: the function changes {names} in Python, which a compiled call does not; return "
            "the tensors, and set or count such values where the compiled function is called",
            PythonEffectWarning,
            stacklevel=4,
        )


def _only_asked(traced: Trace, inputs: Mapping[str, ReachedNumber]) -> tuple[ReachedNumber, ...]:
    asked = {name for guard in traced.guards for name in guard.names} - {number.name for number in inputs.values()}
    return tuple(s for s in traced.states if isinstance(s, ReachedNumber) and s.name in asked)


def _is_frozen(fn: Callable[..., Any], traced: Trace, freeze: bool | None) -> bool:
    """A module alone is frozen unless the user says otherwise, or it changes with every call (batch norm, dropout)."""
    changing = [*traced.updated, *(s for s in traced.states if s.kind == "rng")]
    if changing and freeze:
        raise CaptureError(
            f"{changing[0].name!r} changes from call to call, so it cannot be frozen; call model.eval() before, or "
            "compile with freeze=False"
        )
    return isinstance(fn, torch.nn.Module) and not changing if freeze is None else freeze


class _Builder:
    """Puts inputs, state, nodes and outputs together."""

    def __init__(self, traced: Trace, inputs: Structure, frozen: bool, name: str) -> None:
        self._traced = traced
        self._inputs = inputs
        self._frozen = frozen
        self._graph_name = name
        # Order of right to a name: inputs, outputs, weights, everything internal.
        self._names = Names(inputs.tensor_names)
        self.outputs = _output_names(traced.outputs, self._names)
        self._emitter = Emitter(self._names, traced.symbols)
        self.states: dict[str, ReachedTensor] = {}
        self.numbers: dict[str, ReachedNumber] = {}
        self.updates: dict[str, str] = {}
        self.size_outputs: set[str] = set()
        self._short = short_names(traced.states) if traced.updated else {}

    def build(self) -> ir.Model:
        placeholders = self._traced.graph.graph.find_nodes(op="placeholder")
        count = len(self._inputs.tensor_names)
        inputs = [self._input(n, name) for n, name in zip(placeholders, self._inputs.tensor_names)]
        changed = {id(s) for s in self._traced.updated}
        pairs = list(zip(placeholders[count:], self._traced.states))
        weights = {id(s): self._state(n, s) for n, s in pairs if n.users or id(s) in changed}
        results = translate(self._emitter, self._traced.graph)
        self._traced.symbols.check()
        names = self.outputs.tensor_names
        for state in self._traced.updated:
            name = weights[id(state)].name or ""
            self.updates[name] = self._names.take(f"{name}.new")
        outputs = self._name_outputs(results, [*names, *self.updates.values()], {*inputs, *weights.values()})
        graph = ir.Graph(
            inputs if self._frozen else [*inputs, *weights.values()],
            outputs,
            nodes=self._emitter.nodes,
            initializers=[*weights.values(), *self._emitter.initializers],
            opset_imports={"": OPSET},
            name=self._graph_name,
        )
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="pfvm")
        if weights and not self._frozen:
            write_manifest(model, [self._entry(v.name or "") for v in weights.values()])
        return model

    def _entry(self, name: str) -> StateEntry:
        state = self.states.get(name) or self.numbers[name]
        return StateEntry(name, state.kind, state.name, self.updates.get(name))

    def _state(self, node: torch.fx.Node, state: ReachedTensor | ReachedNumber) -> ir.Value:
        name = self._names.take(self._short.get(state.name, state.name))
        if isinstance(state, ReachedNumber):
            self.numbers[name] = state
            return self._weight(node, name, np.asarray(state.current()))
        if state.tensor.device.type == "meta":
            raise CaptureError(f"weight {state.name!r} is on the meta device and has no values; load it first")
        self.states[name] = state
        return self._weight(node, name, np.array(to_numpy(state.tensor)))  # a copy: the file keeps today's values

    def _input(self, node: torch.fx.Node, name: str) -> ir.Value:
        value = ir.Value(name=name)
        describe_value(value, node.meta["val"], self._traced.symbols)
        self._emitter.bind(node, value)
        return value

    def _weight(self, node: torch.fx.Node, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._emitter.bind(node, value)
        return value

    def _name_outputs(self, results: list[tuple[Any, Any]], names: list[str], taken: set[ir.Value]) -> list[ir.Value]:
        outputs: list[ir.Value] = []
        for (node, value), name in zip(results, names):
            if not isinstance(value, ir.Value):  # a size that turned out to be a plain number
                self._emitter.begin(self._traced.graph.graph.output_node())
                dtype = torch.float64 if isinstance(value, float) else torch.int64
                value = self._emitter.scalar(value, dtype, "size")
            if value in taken or value.producer() is None:
                self._emitter.begin(node if isinstance(node, torch.fx.Node) else self._traced.graph.graph.output_node())
                value = self._emitter.op("Identity", value)
            if not isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor):
                self.size_outputs.add(name)
            taken.add(value)
            value.name = name
            describe_value(value, node.meta["val"] if isinstance(node, torch.fx.Node) else node, self._traced.symbols)
            outputs.append(value)
        return outputs


def _output_names(outputs: Structure, names: Names) -> Structure:
    """The user's names; an output with an input's name gets ".out" added, because ONNX has one name space."""
    final = {}
    for name in outputs.tensor_names:
        taken = names.take(name)
        final[name] = taken if taken == name else names.take(f"{name}.out")
    return outputs.renamed(final)
