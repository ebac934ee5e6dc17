"""Plans for tests of the emulator that need no scheduler: operands are downloaded before a node, results uploaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from pfvm.compiler.plan.addresses import dram_size
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import DOWNLOAD, LAYOUT_SWITCH, REFILL, REUSES, UPLOAD, declare_moves, move_node
from pfvm.compiler.plan.ops.table import rule_of
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE, move, place, placement_of
from pfvm.compiler.plan.planner import Plan, lay_out
from pfvm.runtime.emulator.program import Program


def from_dram(model: ir.Model, options: Mapping[str, object] | None = None) -> Plan:
    """The plan of a compiled model, scheduled in the simplest way."""
    plan = lay_out(model, options)
    schedule_from_dram(plan.model, plan.machine)
    return plan


def schedule_from_dram(model: ir.Model, machine: Machine) -> None:
    """Gives every value a memory and an address, in place."""
    graph, dram = model.graph, machine.memory(DRAM)
    free = dram.granularity
    numbers = {DOWNLOAD: 0, UPLOAD: 0}

    def in_dram(value: ir.Value) -> None:
        nonlocal free
        size = dram_size(placement_of(value), machine)
        move(value, location=DRAM, address=free)
        free += -(-size // dram.granularity) * dram.granularity

    for value in (*graph.inputs, *graph.initializers.values()):
        if placement_of(value).location != IMMEDIATE:
            in_dram(value)
    stored: dict[ir.Value, ir.Value] = {}  # what a node computes → where it is in DRAM
    for node in list(graph):
        if node.op_type == "Constant":
            continue
        if REUSES in node.metadata_props:
            source = stored.get(node.inputs[0], node.inputs[0])
            node.replace_input_with(0, source)
            there = placement_of(source)
            move(node.outputs[0], location=DRAM, address=there.address, parent=source.name)
            continue
        first, last = machine.local_memories[0], machine.local_memories[-1]
        target = first if node.op_type in (LAYOUT_SWITCH, REFILL) else last
        used = {first.name: 0, last.name: 0}
        streamed = rule_of(node).reads_dram(node)
        fetched: dict[ir.Value, ir.Value] = {}
        for i, value in enumerate(node.inputs):
            if value is None or placement_of(value).location == IMMEDIATE:
                continue
            source = stored.get(value, value)
            if i not in streamed:
                if source not in fetched:
                    fetched[source] = _moved(node, DOWNLOAD, source, first, used, machine, numbers)
                source = fetched[source]
            node.replace_input_with(i, source)
        after = node
        for out in [out for out in node.outputs if out.name]:
            _settle(out, target, used, machine)
            upload = move_node(UPLOAD, out, f"{out.name}_Upload_{numbers[UPLOAD]}")
            numbers[UPLOAD] += 1
            graph.insert_after(after, upload)
            after = upload
            copy = upload.outputs[0]
            place(copy, dataclasses.replace(placement_of(out), parent=None))
            in_dram(copy)
            stored[out] = copy
    for i, value in enumerate(graph.outputs):
        if value in stored:
            out = stored[value]
            name, value.name = value.name, f"{value.name}_before"
            out.name = name
            out.metadata_props.update(value.metadata_props)
            graph.outputs[i] = out
    declare_moves(model)


def _moved(node, kind, source, memory, used, machine, numbers) -> ir.Value:
    fetch = move_node(kind, source, f"{source.name}_{kind.removeprefix('MNCore')}_{numbers[kind]}")
    numbers[kind] += 1
    node.graph.insert_before(node, fetch)
    place(fetch.outputs[0], dataclasses.replace(placement_of(source), parent=None))
    _settle(fetch.outputs[0], memory, used, machine)
    return fetch.outputs[0]


def _settle(value, memory, used, machine) -> None:
    at = used[memory.name]
    move(value, location=memory.name, address=at * memory.units_per_long_word)
    size = placement_of(value).layout.num_lw(memory.granularity)
    used[memory.name] = at + -(-size // memory.granularity) * memory.granularity


def compiled_mlp(training: bool, batch: int = 6) -> ir.Model:
    """The compiled graph of a small MLP with padding in every axis: counting right answers, or a step of SGD."""
    torch = pytest.importorskip("torch")
    import pfvm

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    sample = {"x": torch.zeros(batch, 20), "t": torch.zeros(batch, dtype=torch.int64)}

    def count(inp):
        y = net(inp["x"])
        return {"correct": (y.max(1)[1] == inp["t"]).sum(), "y": y}

    def step(inp):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return pfvm.compile(step if training else count, sample).model


def feeds_for(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Random values for the inputs that have no default: small integers, normal floats."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        shape = tuple(int(dim) for dim in value.shape)
        dtype = value.dtype.numpy()
        drawn = rng.integers(0, 3, shape) if np.dtype(dtype).kind in "iub" else rng.standard_normal(shape)
        feeds[str(value.name)] = drawn.astype(dtype)
    return feeds


def emulated(planned: Plan, feeds: Mapping[str, np.ndarray], exact: bool = False) -> dict[str, np.ndarray]:
    """The outputs of one run on the emulator."""
    program = Program(planned.model, planned.machine, exact)
    program.place_weights()
    for name, value in feeds.items():
        program.put(name, value)
    program.run()
    return {name: program.get(name) for name in program.outputs}
