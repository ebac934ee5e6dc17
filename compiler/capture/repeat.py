"""A captured training step → K steps in one call, by `pfvm.compiler.loop`, with the state that PyTorch gives each step.

A seed is drawn for every step, so that dropout drops what it would in K calls. A gradient that was left over counts in
the first step only, where the step ends without it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from pfvm.compiler.loop import loop_model
from pfvm.compiler.signature import read_manifest, write_manifest
from pfvm.compiler.until import Until
from pfvm.errors import CaptureError, OptionError

from .export import Exported


def check_steps(steps: int) -> None:
    """Raises OptionError for what is no number of steps."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"steps_per_call: expected an integer of at least 1, got {steps!r}")


def repeated(exported: Exported, steps: int, until: Until | None = None) -> Exported:
    """The step as a model of `steps` steps: inputs and results get a leading axis of that size. `exported` is used up.

    State in `per_step(exported)` has a value for each step. With `until`, the model's last output says how many ran.
    Raises what `repeatable` raises, and OptionError for a condition on what is no result.
    """
    check_steps(steps)
    step = repeatable(exported)
    return dataclasses.replace(step, model=loop_model(step.model, steps, per_step(step), until))


def repeatable(exported: Exported) -> Exported:
    """The step with an update for all state that another step must not find as it was. `exported` is used up.

    Raises OptionError for a function that changes no state, CaptureError where Python asks for a number that the step
    itself changes.
    """
    name = exported.model.graph.name
    if not exported.updates:
        raise OptionError(f"{name!r} changes no state, so it is no training step; call it once for each batch")
    if exported.schedulers:
        raise CaptureError(
            f"{name!r} calls {type(exported.schedulers[0]).__name__}.step(), and several steps in one call share one "
            "learning rate; call the scheduler outside, after the compiled steps"
        )
    changed = {number.name for name, number in exported.numbers.items() if name in exported.updates}
    for guard in exported.guards:
        asked = sorted(guard.names & changed)
        if asked:
            raise CaptureError(
                f"{guard.where or name}: the step is captured for {guard}, and changes {asked[0]} itself, so that "
                "several steps in one call may take several paths; compile it to run one step a call"
            )
    return dataclasses.replace(exported, updates=_forget_cleared(exported))


def per_step(exported: Exported) -> list[str]:
    """Names of state with a value of its own for each step: seeds, and numbers that the first step has otherwise."""
    seeds = [name for name, state in exported.states.items() if state.kind == "rng"]
    return seeds + [
        n for n, number in exported.numbers.items() if number.later is not None and n not in exported.updates
    ]


def _forget_cleared(exported: Exported) -> dict[str, str]:
    """Zeros as the next value of a gradient that the step reads and then drops. Returns all updates, state → output."""
    graph = exported.model.graph
    dropped = {id(state) for state in exported.cleared}
    updates = dict(exported.updates)
    position = {value.name: index for index, value in enumerate(graph.outputs)}
    for name, state in exported.states.items():
        if id(state) not in dropped:
            continue
        output = updates.setdefault(name, f"{name}.new")
        index = position.get(output, len(graph.outputs))
        for value in graph.outputs[index : index + 1]:
            value.name = f"{name}.dropped"
        graph.outputs[index : index + 1] = [_zeros_like(graph, graph.initializers[name], output)]
    entries = [dataclasses.replace(e, output=updates.get(e.name)) for e in read_manifest(exported.model)]
    write_manifest(exported.model, entries)
    return updates


def _zeros_like(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    assert value.const_value is not None
    zeros = ir.tensor(np.zeros_like(value.const_value.numpy()), name=f"{name}.zeros")
    constant = ir.Value(name=zeros.name, type=value.type, shape=value.shape, const_value=zeros)
    graph.initializers.add(constant)
    node = ir.node("Identity", [constant], name=f"{name}/Identity")
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, value.type, value.shape
    graph.append(node)
    return node.outputs[0]
