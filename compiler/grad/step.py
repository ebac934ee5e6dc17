"""An inference model → one training step: forward, loss, backward, optimizer, and the state manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common
from pfvm.compiler.driver import compile_model
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import parse
from pfvm.compiler.shapes import ShapeInference
from pfvm.compiler.signature import MANIFEST_KEY, Interface, StateEntry, read_manifest, write_manifest
from pfvm.errors import InvalidModelError, OptionError, did_you_mean
from pfvm.passes import pipeline
from pfvm.passes.constant_subgraph import Evaluate

from . import losses, optimizers, params
from .backward import NodeGradient, backward
from .builder import MIN_OPSET, Builder

_IR_VERSION = 8


@dataclasses.dataclass(frozen=True)
class Request:
    """What to make of the model.

    loss: the output that is the loss, or that `loss_fn` is applied to; None: the only one that can be.
    params, freeze: patterns of names of the constants to train, and not to train (see `params.select`).
    shapes: input → its dims, where they are to be fixed.
    """

    loss: str | None = None
    loss_fn: str | None = None
    optimizer: str = "sgd"
    settings: optimizers.Settings = dataclasses.field(default_factory=optimizers.Settings)
    params: Sequence[str] = ()
    freeze: Sequence[str] = ()
    shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    class_axis: int = 1


def make_step(
    source: ir.Model,
    request: Request,
    general: Callable[[ir.Model], NodeGradient],
    evaluate: Evaluate | None = None,
) -> ir.Model:
    """The training step of an inference model in normal form; the argument is not changed.

    general: makes what gives the gradient of nodes that have no rule. evaluate: runs constant subgraphs.
    Raises OptionError, InvalidModelError, and UnsupportedOpError that names the node without a derivative.
    """
    optimizers.check(request.optimizer, request.settings)
    model = _prepared(source, request)
    buffers = [e.name for e in read_manifest(model) if e.kind == "buffer"]
    parameters = [
        v for v in params.select(model, request.params, request.freeze) if request.params or v.name not in buffers
    ]
    params.make_overridable(model, parameters)
    _record(model)
    names = [v.name for v in parameters]
    model = compile_model(model, parse(disable=pipeline.FUSED), evaluate=evaluate).model
    return compile_model(_with_step(model, names, request, general), parse(), evaluate=evaluate).model


def _prepared(source: ir.Model, request: Request) -> ir.Model:
    """At an opset that the builder writes, without functions, with the shapes that were asked for."""
    model = read_model(source)
    if any(entry.output for entry in read_manifest(model)):
        raise InvalidModelError(
            "the model is a training step already: its state manifest names outputs that update state"
        )
    model.ir_version = max(model.ir_version, _IR_VERSION)
    declared = Interface.of(model)
    declared.record(model)
    if model.graph.opset_imports.get("", 0) < MIN_OPSET:
        model = compile_model(model, parse(opt_level=0, opset=MIN_OPSET)).model
        # onnx's converter forgets what the file says of outputs whose shape it cannot infer.
        dataclasses.replace(Interface.of(model), outputs=declared.outputs).record(model)
    if model.functions:
        ir.passes.common.InlinePass()(model)
    inputs = {v.name or "": v for v in model.graph.inputs}
    for name, dims in request.shapes.items():
        if name not in inputs:
            raise OptionError(
                f"the model has no input {name!r}, for which a shape is given{did_you_mean(name, inputs)}"
            )
        known = inputs[name].shape
        if known is not None and (
            len(known) != len(dims) or any(isinstance(k, int) and k != d for k, d in zip(known, dims))
        ):
            raise OptionError(
                f"the shape {list(dims)} that is given for {name!r} does not fit the model's {list(map(str, known))}"
            )
        inputs[name].shape = ir.Shape(dims)
    _bind_symbols(model, source)
    ShapeInference(model).infer_model()
    return model


def _bind_symbols(model: ir.Model, source: ir.Model) -> None:
    """A symbol that one input's shape fixed has that size in the other inputs, too."""
    sizes = {
        old.value: new
        for before, after in zip(source.graph.inputs, model.graph.inputs)
        for old, new in zip(before.shape or (), after.shape or ())
        if isinstance(old, ir.SymbolicDim) and old.value is not None and isinstance(new, int)
    }
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else sizes.get(d.value or "", d) for d in value.shape])


def _record(model: ir.Model) -> None:
    """Let the interface be what the graph has now; of an output whose shape is not known, what the file declares."""
    declared = {v.name: v for v in Interface.of(model).outputs}

    def output(value: ir.Value) -> onnx.ValueInfoProto:
        proto = declared.get(value.name or "")
        return proto if proto is not None and value.shape is None else ir.serde.serialize_value(value)

    graph = model.graph
    Interface(tuple(ir.serde.serialize_value(v) for v in graph.inputs), tuple(output(v) for v in graph.outputs)).record(
        model
    )


def _with_step(
    model: ir.Model, names: Sequence[str | None], request: Request, general: Callable[[ir.Model], NodeGradient]
) -> ir.Model:
    shapes = ShapeInference(model)
    shapes.infer_model()
    builder = Builder(model, shapes)
    output = losses.output_for(model, request.loss, request.loss_fn)
    own = list(model.graph.outputs)
    loss = output
    if request.loss_fn is not None:
        _, loss = losses.add_loss(builder, request.loss_fn, output, request.class_axis)
        loss.name = builder.unique("loss")
        model.graph.outputs[:] = [loss, *own]
    parameters = [v for v in model.graph.inputs if v.name in names]
    gradients = backward(builder, loss, parameters, general(model))
    _leave_out(model, [v for v in parameters if v not in gradients], request, loss)
    entries = _update(builder, model, gradients, request)
    kept = [e for e in read_manifest(model) if e.name not in {entry.name for entry in entries}]
    write_manifest(model, [*entries, *kept])
    _record(model)
    return model


def _leave_out(model: ir.Model, values: Sequence[ir.Value], request: Request, loss: ir.Value) -> None:
    """Parameters that the loss does not depend on stay constants; it is an error where they were asked for by name."""
    trained = [v for v in model.graph.inputs if v.is_initializer() and v not in values]
    if (values and request.params) or not trained:
        listed = ", ".join(repr(v.name) for v in values[:8])
        raise OptionError(
            f"loss {loss.name!r} has no derivative by {listed or 'any constant'}: it does not depend on it"
        )
    declared = {e.name for e in read_manifest(model)} if MANIFEST_KEY in model.metadata_props else set()
    for value in values:
        if value.name not in declared:
            model.graph.inputs.remove(value)


def _update(b: Builder, model: ir.Model, gradients: Mapping[ir.Value, ir.Value], request: Request) -> list[StateEntry]:
    """Write the optimizer; returns the manifest: parameters, their state, the learning rate, the number of steps."""
    rule, default_lr, counts = optimizers.OPTIMIZERS[request.optimizer]
    settings = request.settings
    double = all(p.dtype == ir.DataType.DOUBLE for p in gradients)
    lr_type = np.float64 if double else np.float32
    lr = _state(b, "lr", np.asarray(default_lr if settings.lr is None else settings.lr, lr_type))
    made: list[StateEntry] = []
    number = None
    if counts:
        step = _state(b, "step", np.asarray(0, np.int64))
        new = b.op("Add", step, b.constant(np.int64(1)), hint="step.new")
        model.graph.outputs.append(new)
        made.append(StateEntry(step.name or "", "hyperparameter", output=new.name))
        number = b.cast(new, ir.DataType.DOUBLE)

    def make_state(w: ir.Value, slot: str) -> ir.Value:
        assert w.const_value is not None and w.dtype is not None
        return _state(b, f"{w.name}.{slot}", np.zeros(w.const_value.shape.numpy(), w.dtype.numpy()))

    shared = optimizers.Step(lr, number, make_state)
    entries: list[StateEntry] = []
    slots: list[StateEntry] = []
    for parameter, gradient in gradients.items():
        update = rule(b, settings, shared, parameter, gradient)
        sources = {e.name: e.source for e in read_manifest(model)}
        new_parameter = _output(b, model, update.parameter, parameter)
        entries.append(StateEntry(parameter.name or "", "param", sources.get(parameter.name or "", ""), new_parameter))
        for _, old, new_state in update.state:
            slots.append(StateEntry(old.name or "", "optimizer", output=_output(b, model, new_state, old)))
    return [*entries, *slots, StateEntry(lr.name or "", "hyperparameter"), *made]


def _state(b: Builder, name: str, array: np.ndarray) -> ir.Value:
    """An overridable initializer."""
    value = ir.Value(
        name=b.unique(name),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape(array.shape),
    )
    value.const_value = ir.tensor(array, name=value.name)
    b.model.graph.initializers.add(value)
    b.model.graph.inputs.append(value)
    return value


def _output(b: Builder, model: ir.Model, value: ir.Value, old: ir.Value) -> str:
    """Name a new value of the state and make it an output."""
    if value.producer() is None or value.is_graph_output():
        value = b.op("Identity", value)
    value.name, value.shape, value.type = b.unique(f"{old.name}.new"), old.shape, old.type
    model.graph.outputs.append(value)
    return value.name or ""
