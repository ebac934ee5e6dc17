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

import os
from collections.abc import Collection

import numpy as np
import onnx
import onnx_ir as ir
from pfvm.errors import InvalidModelError, OptionError, UnsupportedOpError, flag

from .forms import Model, in_form_of
from .importer import read_model
from .loop_builder import Roles, StepBuilder
from .signature import MANIFEST_KEY, Interface, StateEntry, read_manifest
from .until import Until, UntilBuilder, parse_until

STEPS_KEY = "pfvm.steps_per_call"
"""Key in `metadata_props` of how many steps one call of the model runs."""

_SCAN_OPSET = 9  # before, Scan had a batch axis of its own


def loop(model: Model, steps: int, *, until: str | None = None, output: str | os.PathLike[str] | None = None) -> Model:
    """A training step as a model that runs `steps` of them in one call; the argument is not changed.

    model: a path (then `output=` is required, and returned), an onnx.ModelProto or an onnx_ir.Model, with a state
        manifest, as `pfvm.export` and `pfvm.grad` write it.
    steps: K, at least 1. Batch inputs get a leading axis of size K, and so do the outputs of every step, such as the
        loss. State goes in and comes out as for one step: the new model has the same names and the same manifest.
    until: "loss < 0.1" (or <=, >, >=): the call ends behind the first step whose output `loss` is below 0.1. A new
        output `steps` (int64) says how many ran; results of steps that did not are NaN, or 0 in types without.

    Raises InvalidModelError (no manifest, state that nothing updates), OptionError (steps, until, output),
    UnsupportedOpError (an opset without Scan, results of open shape with until).
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"steps per call: expected an integer of at least 1, got {steps!r}")
    condition = None if until is None else parse_until(until)
    return in_form_of(model, "loop", output, lambda: loop_model(read_model(model), steps, until=condition))


def loop_model(step: ir.Model, steps: int, per_step: Collection[str] = (), until: Until | None = None) -> ir.Model:
    """`loop`, for a model in normal form. `per_step` names state without an output that every step has a value of."""
    model = read_model(step)
    state = _checked_state(model)
    interface = Interface.of(model)
    roles = Roles.of(model.graph, state, per_step)
    if until is None:
        StepBuilder(model, roles, steps).build()
    else:
        UntilBuilder(model, roles, steps, until).build()
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
            f"convert it first: pfvm compile {flag('opset', 17, 'pfvm.optimize(model, opset=17)')}"
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


def _record(model: ir.Model, step: Interface, roles: Roles, steps: int) -> None:
    """The interface of the new model: that of the step, with a leading axis for batches and results."""
    batches = {v.name for v in roles.batches}
    results = {step.outputs[i].name for i in roles.results}
    new = Interface(
        tuple(_stacked(v, steps) if v.name in batches else v for v in step.inputs),
        tuple(_stacked(v, steps) if v.name in results else v for v in step.outputs)
        + tuple(ir.serde.serialize_value(v) for v in model.graph.outputs[len(step.outputs) :]),
    )
    new.record(model)
    declared = new.declared()
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = declared[value.name or ""].shape


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
