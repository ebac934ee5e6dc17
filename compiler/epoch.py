"""One training step → an epoch in one call: every step takes its rows of data that is an input as a whole.

    x[b,3] ─→ step       ⇒      x[N,3] ────────────────────────────┐
                                seed ─→ order ─→ order[K,b] ─→ Scan(Gather(x, this step's rows) → step)

The data has the names of the step's inputs. `order` is a model of its own, which becomes a part of the new one.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from pfvm.errors import UnsupportedOpError

from .importer import read_model
from .loop import loop_model
from .signature import Interface, StateEntry, read_manifest, write_manifest

SEED = "epoch.seed"
ORDER = "epoch.order"


def epoch_model(step: ir.Model, rows: int, batch: int, order: ir.Model, per_step: Collection[str] = ()) -> ir.Model:
    """The step as a model of one epoch. The arguments are not changed.

    rows: N, the size of the data's first axis. The data is state of kind buffer in the manifest.
    batch: b, the rows of a step; the epoch has K = N // b steps.
    order: a model whose output, int64[K, b], says which rows each of K steps takes; its seed, where it has one, is its
        only input, and an input `SEED` of the new model.
    per_step: as for `loop_model`.
    """
    model = read_model(step)
    _take_rows(model, rows, batch)
    model = loop_model(model, rows // batch, per_step)
    _join(model, read_model(order).graph)
    _record_inputs(model)
    return model


def _take_rows(model: ir.Model, rows: int, batch: int) -> None:
    """Inputs of a batch become inputs of the data, and which rows of it to take becomes the only batch."""
    graph = model.graph
    state = read_manifest(model)
    known = {entry.name for entry in state}
    order = ir.Value(name=ORDER, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([batch]))
    first = next(iter(graph))
    for index, value in enumerate(list(graph.inputs)):
        if value.name in known or value.name in graph.initializers:
            continue
        if not value.shape:
            raise UnsupportedOpError(
                f"input {value.name!r} is a single number, not rows of which an epoch could take some"
            )
        data = ir.Value(name=value.name, type=value.type, shape=ir.Shape([rows, *value.shape[1:]]))
        state.append(StateEntry(data.name or "", "buffer", "data", None))
        graph.inputs[index] = data
        value.name = f"{value.name}.batch"
        taken = ir.node("Gather", [data, order], {"axis": 0}, name=f"{value.name}/Gather")
        value.replace_all_uses_with(taken.outputs[0])
        taken.outputs[0].name, taken.outputs[0].type, taken.outputs[0].shape = value.name, value.type, value.shape
        graph.insert_before(first, taken)
    graph.inputs.append(order)
    write_manifest(model, state)
    _record_inputs(model)


def _join(model: ir.Model, order: ir.Graph) -> None:
    """The nodes of `order` in the place of the input `ORDER`."""
    graph = model.graph
    given = next(value for value in graph.inputs if value.name == ORDER)
    result = order.outputs[0]
    seeds, nodes, constants = list(order.inputs), list(order), list(order.initializers.values())
    order.outputs.clear()
    order.inputs.clear()
    order.initializers.clear()
    order.remove(nodes)
    for value in (*constants, *(v for node in nodes for v in node.outputs)):
        value.name = f"{ORDER}/{value.name}"
    for node in nodes:
        node.name = f"{ORDER}/{node.name}"
    given.replace_all_uses_with(result)
    graph.inputs.remove(given)
    for seed in seeds:
        seed.name = SEED
        graph.inputs.append(seed)
        graph.initializers.add(seed)
        write_manifest(model, [*read_manifest(model), StateEntry(SEED, "rng", "", None)])
    for constant in constants:
        if constant not in seeds:
            graph.initializers.add(constant)
    graph.insert_before(graph[0], nodes)


def _record_inputs(model: ir.Model) -> None:
    inputs = tuple(ir.serde.serialize_value(value) for value in model.graph.inputs)
    Interface(inputs, Interface.of(model).outputs).record(model)
