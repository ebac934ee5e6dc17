"""An MNGraph made ready to run: every value in its memory, every node as a step; what is static is checked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import DOMAIN, GATHERED, REFILL, REUSES, is_move
from pfvm.compiler.plan.ops.table import PadNeed, rule_of
from pfvm.compiler.plan.placement import DRAM, placement_of
from pfvm.errors import InvalidModelError, describe_node

from .arithmetic import Arithmetic
from .calls import Call, call_of
from .checks import check_compute, check_move, check_reuse
from .errors import PaddingError
from .kernels import Kernel, is_elementwise, kernel_of
from .memory import POISON, Region
from .tail import plain
from .values import Held, Memories, number_of

Array = np.ndarray
Step = Callable[[], None]
Observer = Callable[[ir.Node, list[Array]], None]


class Program:
    """A planned model on a machine.

    exact: no rounding anywhere. Raises EmulatorError for a plan that cannot be right, UnsupportedOpError for a node
    that nothing here computes.
    """

    def __init__(self, model: ir.Model, machine: Machine, exact: bool = False) -> None:
        self.model = model
        self.arithmetic = Arithmetic(machine, exact)
        self.memories = Memories(machine)
        self.held: dict[ir.Value, Held] = {}
        self._regions: dict[str, Region | None] = {}
        graph = model.graph
        for value in (*graph.inputs, *graph.initializers.values()):
            self._hold(value)
        self._steps = [step for node in graph if (step := self._step(node)) is not None]
        self.inputs = {value.name or "": self.held[value] for value in graph.inputs}
        self.outputs = {value.name or "": self.held[value] for value in graph.outputs}

    def place_weights(self) -> None:
        """Writes the initializers to where the plan has them."""
        for value in self.model.graph.initializers.values():
            held = self.held[value]
            if held.region is not None:
                self.put(held, np.asarray(value.const_value.numpy()))  # type: ignore[union-attr]

    def put(self, held: Held, array: Array) -> None:
        """Writes a value of the host to its place, rounded to its device dtype."""
        held.store(self.rounded(held, plain(array)), "the host")

    def rounded(self, held: Held, x: Array) -> Array:
        """A result as the value keeps it."""
        return self.arithmetic.store(x, held.placement.dtype, held.value.dtype)

    def run(self, observer: Observer | None = None) -> None:
        """All nodes, in order; inputs must have been put. observer: called with each computed node and its results."""
        self.memories.forget_local()
        for node, step in self._steps:
            step()
            if observer is not None:
                what = describe_node(node)
                observer(node, [self.held[out].load(what) for out in node.outputs if out.name])

    def get(self, name: str) -> Array:
        """A graph output's elements: float64, int64 or bool."""
        return self.outputs[name].load("the host")

    # ---- building

    def _hold(self, value: ir.Value, constant: Array | None = None) -> Held:
        placement = placement_of(value)
        owner = None
        if placement.parent is not None:
            if placement.parent not in self._regions:
                raise InvalidModelError(f"{value.name!r}: its parent {placement.parent!r} is no value before it")
            parent = self._regions[placement.parent]
            owner = None if parent is None else parent.owner
        region = self.memories.region(value, owner)
        if region is None and constant is None:
            if value.const_value is None:
                raise InvalidModelError(f"{value.name!r} is a constant inside the program, but has no content")
            constant = plain(value.const_value.numpy())
        if region is not None:
            constant = None
        held = Held(value, region, self.arithmetic.machine, constant)
        if held.constant is not None:
            held.constant = self.rounded(held, held.constant)
        self._regions[held.name] = region
        self.held[value] = held
        return held

    def _step(self, node: ir.Node) -> tuple[ir.Node, Step] | None:
        inputs = [None if value is None else self._known(node, value) for value in node.inputs]
        call = call_of(node, self.model.functions, self.model.opset_imports)
        if node.domain == "" and node.op_type == "Constant":
            content = kernel_of(call, self.arithmetic, [])([])[0]
            self._hold(node.outputs[0], content)
            return None
        if REUSES in node.metadata_props:
            self._reuse(call, inputs)
            return None
        outputs = [self._hold(value) for value in node.outputs if value.name]
        if is_move(node) or (node.op_type == "Identity" and GATHERED not in node.metadata_props):
            return node, self._move(node, _given(inputs[0]), outputs[0])
        return node, self._compute(call, inputs, outputs)

    def _known(self, node: ir.Node, value: ir.Value) -> Held:
        if value not in self.held:
            raise InvalidModelError(f"{describe_node(node)} reads {value.name!r}, which no node before it computes")
        return self.held[value]

    def _reuse(self, call: Call, inputs: list[Held | None]) -> None:
        source = _given(inputs[0])
        out = self._hold(call.node.outputs[0])
        if source.constant is not None or out.region is None:
            raise InvalidModelError(f"{describe_node(call.node)}: a constant has no memory to name again")
        kernel = kernel_of(call, self.arithmetic, [None] * len(inputs))
        indices = np.arange(int(np.prod(source.shape, dtype=np.int64))).reshape(source.shape)
        others = [None if held is None else held.constant for held in inputs[1:]]
        positions = kernel([indices, *others])[0]
        check_reuse(call.node, source, out, positions, self.arithmetic.machine)
        if out.region.owner is not _given(source.region).owner:
            raise InvalidModelError(f"{describe_node(call.node)}: the parent of {out.name!r} is not {source.name!r}")

    def _move(self, node: ir.Node, source: Held, out: Held) -> Step:
        if source.constant is not None:
            raise InvalidModelError(f"{describe_node(node)}: a constant inside the program is not moved")
        machine, what = self.arithmetic.machine, describe_node(node)
        check_move(node, source, out, machine)
        room = out.layout.padded_shape
        if node.domain == DOMAIN and node.op_type == REFILL:
            number = number_of(node.attributes.get_string("pad", "Zero"), out.placement.dtype, machine)
            valid = out.layout.valid()

            def refill() -> None:
                padded = np.full(room, number)
                padded[valid] = source.cropped(source.padded(what), what)
                out.store_padded(padded, what)

            return refill

        def move() -> None:
            padded = fitted(source.padded(what), room)
            if source.placement.dtype != out.placement.dtype:
                padded = self._converted(padded, out)
            out.store_padded(padded, what)

        return move

    def _converted(self, padded: Array, out: Held) -> Array:
        """Another dtype; poison stays poison."""
        with np.errstate(all="ignore"):
            return np.where(np.isnan(padded), padded, self.rounded(out, padded))

    def _compute(self, call: Call, inputs: list[Held | None], outputs: list[Held]) -> Step:
        node, machine = call.node, self.arithmetic.machine
        what, rule = describe_node(node), rule_of(node)
        check_compute(node, rule, inputs, outputs, machine)
        dtypes = [None if held is None else held.placement.dtype for held in inputs]
        kernel = kernel_of(call, self.arithmetic, dtypes)
        gathered = GATHERED in node.metadata_props
        promised = any(held.layout.is_padded and held.placement.pad not in (None, "Dirty") for held in outputs)
        if promised and not gathered and rule.kind == "elementwise" and is_elementwise(call):
            return self._padded_step(what, kernel, inputs, outputs)
        if promised and not gathered:
            raise PaddingError(f"{what} cannot leave its padding {outputs[0].placement.pad}: only a refill can")
        needs = [] if gathered else self._needs(rule.pad_need(node), inputs)
        named = [i for i, value in enumerate(node.outputs) if value.name]

        def compute() -> None:
            arguments: list[Array | None] = []
            for i, held in enumerate(inputs):
                if held is None or held.constant is not None:
                    arguments.append(None if held is None else held.constant)
                    continue
                padded = held.padded(what)
                for at, axes, number in needs:
                    if at == i:
                        held.check_padding(padded, axes, number, what)
                arguments.append(held.typed(held.cropped(padded, what)))
            results = kernel(arguments)
            for k, held in zip(named, outputs):
                held.store(self.rounded(held, results[k]), what)

        return compute

    def _needs(
        self, needs: Sequence[PadNeed | None], inputs: list[Held | None]
    ) -> list[tuple[int, tuple[int, ...], float]]:
        """(input, axes, number) of the padding that a node reads."""
        found = []
        for i, (need, held) in enumerate(zip(needs, inputs)):
            if need is not None and held is not None and held.layout.is_padded and held.constant is None:
                number = number_of(need.pad, held.placement.dtype, self.arithmetic.machine)
                found.append((i, tuple(need.axes), number))
        return found

    def _padded_step(self, what: str, kernel: Kernel, inputs: list[Held | None], outputs: list[Held]) -> Step:
        """An elementwise node whose padding matters: it is computed like every element."""

        def compute() -> None:
            arguments = [None if held is None else self._spread(held, outputs[0], what) for held in inputs]
            results = kernel(arguments)
            for held, result in zip(outputs, results):
                rounded = self.rounded(held, np.broadcast_to(result, held.layout.padded_shape))
                held.store_padded(np.asarray(rounded, np.float64), what)

        return compute

    def _spread(self, held: Held, out: Held, what: str) -> Array:
        """The padded operand, of the output's padded sizes except where it is repeated."""
        if held.constant is not None and held.constant.size == 1:
            return held.constant
        padded = held.padded(what)
        held.cropped(padded, what)
        lead = len(out.shape) - len(held.shape)
        room = [1 if size == 1 else out.layout.padded_shape[i + lead] for i, size in enumerate(held.shape)]
        with np.errstate(all="ignore"):
            return np.asarray(held.typed(fitted(padded, room)), order="C")


def fitted(padded: Array, room: Sequence[int]) -> Array:
    """A tensor cut or continued with poison to other padded sizes."""
    if padded.shape == tuple(room):
        return padded
    result = np.full(room, POISON)
    shared = tuple(slice(0, min(a, b)) for a, b in zip(padded.shape, room))
    result[shared] = padded[shared]
    return result


def _given(value: Any) -> Any:
    assert value is not None
    return value


def stored_state(model: ir.Model) -> Mapping[str, str]:
    """Graph output → the state whose DRAM address it takes over in the next call."""
    return {
        str(value.name): value.metadata_props["pfvm.state_of"]
        for value in model.graph.outputs
        if "pfvm.state_of" in value.metadata_props and placement_of(value).location == DRAM
    }
