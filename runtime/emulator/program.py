"""An MNGraph made ready to run: every value in its memory, every node as a step; what is static is checked here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.layout import LANE, LayoutError
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import GATHERED, OUTPUT_CONCAT, REUSES, is_move
from pfvm.compiler.plan.placement import IMMEDIATE, Placement, placement_of
from pfvm.compiler.plan.state import STATE
from pfvm.errors import InvalidModelError, describe_node

from .arithmetic import Arithmetic
from .calls import Call, call_of
from .checks import check_concat, check_reuse
from .kernels import given, kernel_of
from .memory import DerivedRegion, DramRegion, Region, long_word
from .steps import Step, compute_step, move_step, stored
from .tail import plain
from .values import Memories, PlacedValue

Array = np.ndarray
Observer = Callable[[ir.Node, list[Array]], None]

_RUNS_WITH_COPIES = 2


class Program:
    """A planned model on a machine.

    exact: no rounding anywhere. Raises EmulatorError for a plan that cannot be right, UnsupportedOpError for a node
    that nothing here computes.
    """

    def __init__(self, model: ir.Model, machine: Machine, exact: bool = False) -> None:
        self.model = model
        self.arithmetic = Arithmetic(machine, exact)
        self.memories = Memories(machine)
        self._held: dict[ir.Value, PlacedValue] = {}
        self._runs = 0
        self._regions: dict[str, Region | None] = {}
        graph = model.graph
        for value in (*graph.inputs, *graph.initializers.values()):
            if value not in self._held:
                self._hold(value)
        self._steps = [(node, step) for node in graph if (step := self._step(node)) is not None]
        self.inputs = {value.name or "": self._held[value] for value in graph.inputs}
        self.outputs = {value.name or "": self._held[value] for value in graph.outputs}
        # Inputs whose memory a run leaves with other values.
        self.overwritten = {v.metadata_props[STATE] for v in graph.outputs if STATE in v.metadata_props}

    def place_weights(self) -> None:
        """Writes the initializers to where the plan has them."""
        for name, value in self.model.graph.initializers.items():
            if self._held[value].region is not None:
                self.put(name, value.const_value.numpy())  # type: ignore[union-attr]

    def put(self, name: str, array: Array) -> None:
        """Writes an input or initializer of the graph to its place, rounded to its device dtype."""
        value = self.model.graph.initializers.get(name)
        held = self.inputs[name] if value is None else self._held[value]
        held.store(stored(self.arithmetic, held, plain(array)), "the host")

    def get(self, name: str) -> Array:
        """A graph output's elements: float64, int64 or bool."""
        return self.outputs[name].load("the host")

    def run(self, observer: Observer | None = None) -> None:
        """All nodes, in order; inputs must have been put. observer: called with each computed node and its results.

        Layouts and addresses are the same in every run, so that copies which agreed in the first ones, agree.
        """
        self.memories.begin(with_copies=self._runs < _RUNS_WITH_COPIES)
        self._runs += 1
        for node, step in self._steps:
            step()
            if observer is not None:
                what = describe_node(node)
                observer(node, [self._held[out].load(what) for out in node.outputs if out.name])

    # ---- state that stays in DRAM

    def can_take_over(self, name: str, output: str) -> bool:
        """Can an output of the last run be this input of the next one without being moved?"""
        a, b = self.inputs[name], self.outputs[output]
        return (
            isinstance(a.region, DramRegion)
            and isinstance(b.region, DramRegion)
            and a.layout == b.layout
            and a.placement.dtype == b.placement.dtype
        )

    def take_over(self, name: str, output: str) -> None:
        """The output of the last run is the input of the next one: at its address, or the two change places."""
        self._dram(name).take_over(self.outputs[output].region)  # type: ignore[arg-type]

    def image(self, name: str) -> Array:
        """A copy of the long words of an input."""
        return self._dram(name).image()

    def restore(self, name: str, image: Array) -> None:
        """Puts back what `image` gave."""
        self._dram(name).set_image(image)

    def _dram(self, name: str) -> DramRegion:
        region = self.inputs[name].region
        assert isinstance(region, DramRegion)
        return region

    # ---- building

    def _hold(self, value: ir.Value, constant: Array | None = None, region: Region | None = None) -> PlacedValue:
        placement = placement_of(value)
        self._check_layout(value, placement)
        if placement.location == IMMEDIATE:
            if constant is None:
                if value.const_value is None:
                    raise InvalidModelError(f"{value.name!r} is a constant inside the program, but has no content")
                constant = plain(value.const_value.numpy())
            constant = self.arithmetic.store(constant, placement.dtype, value.dtype)
        else:
            constant = None
            region = region or self.memories.region(value, self._parent(value, placement.parent))
        held = PlacedValue(value, region, self.arithmetic.machine, constant)
        self._regions[held.name] = region
        self._held[value] = held
        return held

    def _check_layout(self, value: ir.Value, placement: Placement) -> None:
        machine = self.arithmetic.machine
        try:
            placement.layout.check({**machine.index_levels, LANE: machine.lanes(placement.dtype)})
        except LayoutError as error:
            raise LayoutError(f"value {value.name!r}: {error}") from error

    def _parent(self, value: ir.Value, parent: str | None) -> Region | None:
        """The region whose memory a value names again."""
        if parent is None:
            return None
        if parent not in self._regions:
            raise InvalidModelError(f"{value.name!r}: its parent {parent!r} is no value before it")
        found = self._regions[parent]
        return None if found is None else found.owner

    def _step(self, node: ir.Node) -> Step | None:
        inputs = [None if value is None else self._known(node, value) for value in node.inputs]
        call = call_of(node, self.model.functions, self.model.opset_imports)
        if is_move(node) and node.op_type == OUTPUT_CONCAT:
            self._concat(call, [given(held) for held in inputs])
            return None
        if all(placement_of(out).location == IMMEDIATE for out in node.outputs if out.name):
            contents = kernel_of(call, self.arithmetic, [None] * len(inputs))([_content(node, held) for held in inputs])
            for out, content in zip(node.outputs, contents):
                self._hold(out, content)
            return None
        if REUSES in node.metadata_props:
            self._reuse(call, inputs)
            return None
        outputs = [self._hold(value) for value in node.outputs if value.name]
        if is_move(node) or (node.op_type == "Identity" and GATHERED not in node.metadata_props):
            return move_step(call, self.arithmetic, given(inputs[0]), outputs[0])
        return compute_step(call, self.arithmetic, inputs, outputs)

    def _known(self, node: ir.Node, value: ir.Value) -> PlacedValue:
        if value not in self._held:
            raise InvalidModelError(f"{describe_node(node)} reads {value.name!r}, which no node before it computes")
        return self._held[value]

    def _reuse(self, call: Call, inputs: list[PlacedValue | None]) -> None:
        """A node without a step: its output is where its input is."""
        source = given(inputs[0])
        kernel = kernel_of(call, self.arithmetic, [None] * len(inputs))
        others = [None if held is None else held.constant for held in inputs[1:]]
        region = None
        if isinstance(source.region, DerivedRegion):
            out = call.node.outputs[0]
            start = source.region.record.start
            what = describe_node(call.node)
            region = DerivedRegion(
                str(out.name), placement_of(out), start, lambda reader: kernel([source.load(what), *others])[0]
            )
        held = self._hold(call.node.outputs[0], region=region)
        indices = np.arange(int(np.prod(source.shape, dtype=np.int64))).reshape(source.shape)
        positions = kernel([indices, *others])[0]
        check_reuse(call.node, source, held, positions, self.arithmetic.machine)
        if region is None and given(held.region).owner is not given(source.region).owner:
            raise InvalidModelError(f"{describe_node(call.node)}: the parent of {held.name!r} is not {source.name!r}")

    def _concat(self, call: Call, slices: list[PlacedValue]) -> None:
        """A whole in DRAM whose slices are stored already, one behind the other."""
        node, out = call.node, call.node.outputs[0]
        kernel, what = kernel_of(call, self.arithmetic, [None] * len(slices)), describe_node(node)

        def elements(reader: str) -> Array:
            return kernel([held.load(f"{reader} through {what}") for held in slices])[0]

        start = long_word(str(out.name), placement_of(out), self.memories.dram.memory)
        whole = self._hold(out, region=DerivedRegion(str(out.name), placement_of(out), start, elements))
        check_concat(node, slices, whole, kernel, self.arithmetic.machine)


def _content(node: ir.Node, held: PlacedValue | None) -> Array | None:
    if held is not None and held.constant is None:
        raise InvalidModelError(f"{describe_node(node)}: its result is part of the program, but {held.name!r} is not")
    return None if held is None else held.constant
