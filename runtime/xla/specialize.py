"""What must be known at compile time so that one value is: run-time inputs and the values between."""

from __future__ import annotations

import dataclasses
from collections.abc import Container

import onnx_ir as ir
from pfvm.passes.effects import bodies

from .body_flow import body_input_reads, output_reads
from .context import NeedsValue, Scope
from .registry import lookup
from .weights import Weights


@dataclasses.dataclass
class Specialization:
    """Grows while an executable is used; never shrinks, so that later calls start from what earlier ones learned.

    `inputs`: run-time inputs whose values join the key. `forced`: values to compute at trace time.
    """

    inputs: set[ir.Value] = dataclasses.field(default_factory=set)
    forced: set[ir.Value] = dataclasses.field(default_factory=set)

    def add(self, other: Specialization) -> bool:
        """Merge; True where this changed anything."""
        grown = not (other.inputs <= self.inputs and other.forced <= self.forced)
        self.inputs |= other.inputs
        self.forced |= other.forced
        return grown


def backward_slice(
    request: NeedsValue, weights: Weights, functions: dict, given: Container[ir.Value] = ()
) -> Specialization:
    """Everything that the requested value is computed from, across function calls and bodies.

    `given` are values that are inputs although a node computes them: results of earlier segments.
    """
    found = Specialization()
    stack: list[tuple[ir.Value, Scope]] = [(request.value, request.scope)]
    seen: set[tuple[ir.Value, int]] = set()
    while stack:
        value, scope = stack.pop()
        if (value, id(scope)) in seen:
            continue
        seen.add((value, id(scope)))
        if value in weights and value not in weights.state:
            continue
        if value in given:
            found.inputs.add(value)
            continue
        node = value.producer()
        if node is None:
            owner = scope.bodies.get(value.graph) if isinstance(value.graph, ir.Graph) else None
            if owner is None:
                _leave(value, scope, stack, found)
                continue
            reads = body_input_reads(owner, value)
            found.forced.update(owner.outputs)  # its iterations are written out
        else:
            found.forced.add(value)
            reads = _reads(node, value, scope, functions, found)
        stack.extend((v, scope) for v in reads if v is not None and v.name)
    return found


def _leave(value: ir.Value, scope: Scope, stack: list, found: Specialization) -> None:
    """A value that no node computes: a run-time input, or a function's input, which continues at the caller."""
    if scope.body is None or scope.call is None or scope.parent is None:
        found.inputs.add(value)
        return
    index = next((i for i, v in enumerate(scope.body.inputs) if v is value), None)
    if index is None:
        found.inputs.add(value)
    elif index < len(scope.call.inputs) and scope.call.inputs[index] is not None:
        stack.append((scope.call.inputs[index], scope.parent))


def _reads(
    node: ir.Node, value: ir.Value, scope: Scope, functions: dict, found: Specialization
) -> list[ir.Value | None]:
    """What `node` reads to compute its output `value`."""
    rule = lookup(node.domain, node.op_type, scope.opset(node.domain))
    function = functions.get((node.domain, node.op_type, node.overload))
    if function is not None:
        for inner in function.all_nodes():
            found.forced.update(inner.outputs)
    elif rule is not None and rule.place == "shape":
        return []
    elif rule is not None and rule.place == "control":
        scope.bodies.update((body, node) for body in bodies(node))
        return output_reads(node, value)
    return list(node.inputs)
