"""Writes a schedule into the MNGraph: nodes in its order, moves between them, every value in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import onnx_ir as ir
from pfvm.compiler.plan.addresses import address_in_units
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import DOWNLOAD, RECOMPUTED, REUSES, UPLOAD, copy_node, declare_moves, move_node
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE, find_placement, move, place, placement_of
from pfvm.compiler.plan.state import STATE

from .dram import plan_dram
from .reading import Reading, new_copy
from .simulation import Step
from .slicing import TIMED

LOCAL_SUFFIX = "_Local"


def emit(model: ir.Model, machine: Machine, reading: Reading, steps: list[Step]) -> None:
    """Rebuilds the model's graph, in place."""
    _Emission(model, machine, reading, steps).emit()


class _Emission:
    """`copies[buffer][memory]`: the values that name the buffer there now, by the value that they stand for."""

    def __init__(self, model: ir.Model, machine: Machine, reading: Reading, steps: list[Step]) -> None:
        self.model, self.machine, self.reading, self.steps = model, machine, reading, steps
        self.memories = [memory.name for memory in machine.local_memories]
        self.dram = plan_dram(model, machine, reading, steps)
        self.layouts = [placement_of(root).layout for root in reading.roots]  # as they are in local memories
        self.copies: list[dict[str, dict[ir.Value, ir.Value]]] = [{} for _ in reading.roots]
        self.nodes: list[ir.Node] = []
        self.used: set[ir.Node] = set()  # nodes of the unscheduled graph that stand in the new one
        self.counts: dict[str, int] = defaultdict(int)
        self.output_names = self._rename_outputs()
        self.input_numbers = self._number_inputs()

    def emit(self) -> None:
        graph = self.model.graph
        original = list(graph)
        self._place_stored()
        handle: Mapping[str, Callable[[Step], None]] = {
            "run": self._run,
            "download": self._download,
            "upload": self._upload,
            "copy": self._copy,
            "drop": self._drop,
        }
        for step in self.steps:
            handle[step.kind](step)
        outputs = [self._output(value) for value in graph.outputs]
        for i, value in enumerate(outputs):
            graph.outputs[i] = value
        graph.remove(original)
        for node in original:
            if node not in self.used and node not in self.reading.head:
                for i in range(len(node.inputs)):
                    node.replace_input_with(i, None)
        graph.extend([*self.reading.head, *self.nodes])
        declare_moves(self.model)

    def _rename_outputs(self) -> dict[ir.Value, str]:
        """An output's name goes to what lies in DRAM at the end; what is computed before gets a suffix."""
        names = {}
        for value in self.model.graph.outputs:
            placement = find_placement(value)
            stays = value.producer() is None or (placement is not None and placement.location == IMMEDIATE)
            if value not in names and not stays and value.name is not None:
                names[value] = value.name
        for value, name in names.items():
            value.name = name + LOCAL_SUFFIX
        return names

    def _number_inputs(self) -> dict[ir.Value, int]:
        """Downloads of inputs are numbered as the graph's inputs stand, whatever their order in time."""
        first = {step.subject for step in self.steps if step.kind == "download"}
        inputs = [v for v in self.model.graph.inputs if self.reading.buffer_of.get(v) in first]
        self.counts[DOWNLOAD] = len(inputs)
        return {value: i for i, value in enumerate(inputs)}

    def _place_stored(self) -> None:
        for b, root in enumerate(self.reading.roots):
            if root.producer() is None and b in self.dram:
                self._in_dram(root, b)
                self.copies[b][DRAM] = {root: root}

    # ---- steps

    def _run(self, step: Step) -> None:
        node, op = self.reading.nodes[step.subject], self.reading.problem.ops[step.subject]
        streamed = self.reading.streamed(node, op)
        operands = [
            value if value is None else self._named(value, DRAM if i in streamed else self.memories[step.memory])
            for i, value in enumerate(self.reading.operands[node])
        ]
        again = node in self.used
        running = self._take(node, operands, "Recompute")
        if again:
            running.metadata_props[RECOMPUTED] = "1"
        for old, new in zip(node.outputs, running.outputs):
            b = self.reading.buffer_of.get(old)
            if b is None:
                continue
            if b in op.stores:
                whole = operands[0] is not None and REUSES in node.metadata_props
                self._in_dram(new, b, parent=operands[0].name if whole and operands[0] is not None else None)
                self.copies[b][DRAM] = {old: new}
                if not again and old in self.output_names:
                    new.name = self.output_names[old]
            else:
                memory = self.memories[step.target]
                self._at(new, memory, self._address_of(step, b))
                self.copies[b][memory] = {old: new}

    def _address_of(self, step: Step, buffer: int) -> int:
        return step.addresses[self.reading.problem.ops[step.subject].writes.index(buffer)]

    def _download(self, step: Step) -> None:
        memory = self.memories[step.memory]
        root = self.reading.roots[step.subject]
        split = self.reading.splits.get(step.subject)
        if split is not None:
            whole = self.reading.operands[split][0]
            assert whole is not None
            out = self._take(split, [self._named(whole, DRAM)], "Again").outputs[0]
        else:
            source = self._named(root, DRAM)
            number = self.input_numbers.pop(root, None)
            out = self._moved(DOWNLOAD, source, number)
        self._at(out, memory, step.addresses[0])
        if split is None:
            move(out, layout=self.layouts[step.subject])
        self.copies[step.subject][memory] = {root: out}

    def _upload(self, step: Step) -> None:
        root = self.reading.roots[step.subject]
        source = self._named(root, self.memories[step.memory])
        name = self.output_names.get(root)
        out = self._moved(UPLOAD, source, None, name)
        self._in_dram(out, step.subject)
        self.copies[step.subject][DRAM] = {root: out}

    def _copy(self, step: Step) -> None:
        root = self.reading.roots[step.subject]
        source = self._named(root, self.memories[step.memory])
        node = new_copy(source, f"{source.name}_Identity_{self._count('Identity')}")
        self.nodes.append(node)
        place(node.outputs[0], placement_of(source))
        self._at(node.outputs[0], self.memories[step.target], step.addresses[0])
        self.copies[step.subject][self.memories[step.target]] = {root: node.outputs[0]}

    def _drop(self, step: Step) -> None:
        del self.copies[step.subject][self.memories[step.memory]]

    def _output(self, value: ir.Value) -> ir.Value:
        if value not in self.output_names:
            return value
        out = self._named(value, DRAM)
        if STATE in value.metadata_props:
            out.metadata_props[STATE] = value.metadata_props[STATE]
        return out

    # ---- values

    def _named(self, value: ir.Value, memory: str) -> ir.Value:
        """The value that stands for `value` in a memory; views are named there when they are first wanted."""
        b = self.reading.buffer_of.get(value)
        if b is None:
            return value
        here = self.copies[b][memory]
        if value in here:
            return here[value]
        chain = [value]
        while self.reading.operands[self.reading.views[chain[-1]]][0] not in here:
            chain.append(self._viewed(chain[-1]))
        for view in reversed(chain):
            source = here[self._viewed(view)]
            node = self.reading.views[view]
            running = self._take(node, [source, *self.reading.operands[node][1:]], "View")
            out = running.outputs[0]
            if memory == DRAM and view in self.output_names:
                out.name = self.output_names[view]
            lies = placement_of(source)
            move(out, location=lies.location, address=lies.address, parent=source.name)
            here[view] = out
        return here[value]

    def _viewed(self, view: ir.Value) -> ir.Value:
        source = self.reading.operands[self.reading.views[view]][0]
        assert source is not None
        return source

    def _take(self, node: ir.Node, operands: list[ir.Value | None], word: str) -> ir.Node:
        """The node itself with new operands the first time, later a copy of it with new names."""
        if node in self.used:
            node = self._clone(node, operands, word)
        else:
            self.used.add(node)
            for i, operand in enumerate(operands):
                node.replace_input_with(i, operand)
        self.nodes.append(node)
        return node

    def _clone(self, node: ir.Node, operands: list[ir.Value | None], word: str) -> ir.Node:
        suffix = f"{word}_{self._count(word)}"
        outputs = []
        for old in node.outputs:
            new = ir.Value(name=f"{old.name}_{suffix}" if old.name else "", type=old.type, shape=old.shape)
            new.meta.update(old.meta)
            outputs.append(new)
        return copy_node(node, operands, outputs, suffix)

    def _moved(self, kind: str, source: ir.Value, number: int | None, name: str | None = None) -> ir.Value:
        if name is None:
            word = kind.removeprefix("MNCore")
            name = f"{source.name}_{word}_{self._count(kind) if number is None else number}"
        node = move_node(kind, source, name)
        self.nodes.append(node)
        place(node.outputs[0], placement_of(source))
        return node.outputs[0]

    def _count(self, kind: str) -> int:
        self.counts[kind] += 1
        return self.counts[kind] - 1

    def _in_dram(self, value: ir.Value, buffer: int, parent: str | None = None) -> None:
        """What is read or written there in slices has its layout in DRAM with a subaxis of level Time."""
        self._at(value, DRAM, self.dram[buffer], parent)
        timed = self.reading.roots[buffer].meta.get(TIMED)
        if timed is not None:
            move(value, layout=timed)

    def _at(self, value: ir.Value, memory: str, start: int, parent: str | None = None) -> None:
        address = address_in_units(start, self.machine.memory(memory))
        move(value, location=memory, address=address, parent=parent)
