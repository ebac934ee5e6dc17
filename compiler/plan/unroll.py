"""Branches and loops made straight: an If with a known condition, a Loop or Scan with a known number of iterations.

A body is copied into the graph around it, once per iteration; what its nodes and values are called gets the name of
the loop's node and the iteration behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from pfvm.errors import UnsupportedOpError, describe_node, flag
from pfvm.passes.dims import static_shape
from pfvm.passes.effects import bodies
from pfvm.passes.provenance import location
from pfvm.passes.view import constant, constant_tensor

from . import recurrent


class Unroller:
    """Unrolls until graphs have grown by `limit` nodes. `spent`: by how many they have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.spent = 0

    def run(self, model: ir.Model) -> bool:
        """One sweep over a graph, in place: True where something was unrolled, so that the passes can go on.

        Raises UnsupportedOpError for a loop that would unroll to more nodes than the limit.
        """
        self._model = model
        changed = False
        for node in list(self._model.graph):
            if node.domain == "" and node.op_type in _KINDS and node.graph is self._model.graph:
                changed |= _KINDS[node.op_type](self, node)
        return changed

    # ---- kinds

    def _if(self, node: ir.Node) -> bool:
        condition = constant(node.inputs[0])
        if condition is None:
            return False
        branch = node.attributes["then_branch" if bool(np.all(condition)) else "else_branch"].as_graph()
        self._replace(node, self._copy(node, branch, [], ""))
        return True

    def _loop(self, node: ir.Node) -> bool:
        trips = _trips(node)
        if trips is None:
            return False
        (body,) = bodies(node)
        self._charge(node, body, trips)
        carried: list[ir.Value] = [value for value in node.inputs[2:] if value is not None]
        scanned: list[list[ir.Value]] = [[] for _ in range(len(node.outputs) - len(carried))]
        for trip in range(trips):
            index = self._constant(np.asarray(trip, np.int64), f"{self._of(node)}_trip_{trip}")
            condition = self._constant(np.asarray(True), f"{self._of(node)}_go_{trip}")
            results = self._copy(node, body, [index, condition, *carried], f"_{trip}")[1:]
            carried, rows = results[: len(carried)], results[len(carried) :]
            for stack, row in zip(scanned, rows):
                stack.append(row)
        outputs = [*carried]
        for i, stack in enumerate(scanned):
            outputs.append(self._stacked(node, stack, 0, node.outputs[len(carried) + i]))
        self._replace(node, outputs)
        return True

    def _scan(self, node: ir.Node) -> bool:
        if self._model.opset_imports.get("", 0) < 9:
            return False
        (body,) = bodies(node)
        count = node.attributes.get_int("num_scan_inputs", 0)
        states = len(node.inputs) - count
        axes = list(node.attributes.get_ints("scan_input_axes", ()) or [0] * count)
        backwards = list(node.attributes.get_ints("scan_input_directions", ()) or [0] * count)
        sequences = [value for value in node.inputs[states:] if value is not None]
        shape = static_shape(sequences[0]) if sequences else None
        if shape is None:
            return False
        trips = shape[axes[0]]
        self._charge(node, body, trips)
        carried: list[ir.Value] = [value for value in node.inputs[:states] if value is not None]
        scanned: list[list[ir.Value]] = [[] for _ in range(len(node.outputs) - states)]
        for trip in range(trips):
            rows = [
                self._row(node, value, axis, trips - 1 - trip if back else trip)
                for value, axis, back in zip(sequences, axes, backwards)
            ]
            results = self._copy(node, body, [*carried, *rows], f"_{trip}")
            carried = results[:states]
            for stack, row in zip(scanned, results[states:]):
                stack.append(row)
        out_axes = list(node.attributes.get_ints("scan_output_axes", ()) or [0] * len(scanned))
        reverse = list(node.attributes.get_ints("scan_output_directions", ()) or [0] * len(scanned))
        outputs = [*carried]
        for i, stack in enumerate(scanned):
            ordered = stack[::-1] if reverse[i] else stack
            outputs.append(self._stacked(node, ordered, out_axes[i], node.outputs[states + i]))
        self._replace(node, outputs)
        return True

    def _recurrent(self, node: ir.Node) -> bool:
        """LSTM, GRU and RNN, where the limit has room for them: they can run gathered, too."""
        if static_shape(node.inputs[0]) is None or not recurrent.is_recurrent(node):  # type: ignore[arg-type]
            return False
        if self.spent + recurrent.steps(node) > self._limit:
            return False
        self.spent += recurrent.steps(node)
        self._replace(node, recurrent.unroll(self._model, node))
        return True

    # ---- parts

    def _of(self, node: ir.Node) -> str:
        """What a node's copies are called after: its name, or its first output's."""
        return node.name or str(node.outputs[0].name)

    def _charge(self, node: ir.Node, body: ir.Graph, trips: int) -> None:
        self.spent += trips * len(body)
        if self.spent > self._limit:
            raise UnsupportedOpError(
                f"{describe_node(node)}: {trips} iterations of {len(body)} nodes are more than "
                f"{flag('unroll-limit', self._limit)} allows; raise it, or plan for a shorter sequence"
            )

    def _copy(self, node: ir.Node, body: ir.Graph, actual: Sequence[ir.Value], suffix: str) -> list[ir.Value]:
        """A copy of a body's nodes before `node`; returns what its outputs are there."""
        assert node.graph is not None
        copied = body.clone(allow_outer_scope_values=True)
        for formal, value in zip(copied.inputs, actual):
            formal.replace_all_uses_with(value, replace_graph_outputs=True)
        for name, value in list(copied.initializers.items()):
            copied.initializers.pop(name)
            value.name = f"{self._of(node)}/{name}{suffix}"
            node.graph.initializers.add(value)
        results = list(copied.outputs)
        copied.outputs.clear()
        inner = list(copied)
        copied.remove(inner)
        for each in inner:
            each.name = f"{self._of(node)}/{each.name}{suffix}" if each.name else None
            for out in each.outputs:
                if out.name:
                    out.name = f"{self._of(node)}/{out.name}{suffix}"
        node.graph.insert_before(node, inner)
        return results

    def _replace(self, node: ir.Node, results: Sequence[ir.Value]) -> None:
        """Readers of a node's outputs read the results; graph outputs keep their names."""
        graph = self._model.graph
        for old, new in zip(node.outputs, results):
            if old.is_graph_output():
                keep = self._op(node, "Identity", [new])
                name, old.name = old.name, None
                keep.name, keep.type, keep.shape = name, old.type, old.shape
                for i, out in enumerate(graph.outputs):
                    if out is old:
                        graph.outputs[i] = keep
                new = keep
            old.replace_all_uses_with(new)
        graph.remove(node, safe=True)

    def _op(self, node: ir.Node, op: str, inputs: Sequence[ir.Value], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        made = ir.Node(
            "", op, inputs, attributes, num_outputs=1, name=f"{self._of(node)}/{op}_{len(self._model.graph)}"
        )
        made.outputs[0].name = f"{made.name}_output"
        made.metadata_props.update(location(node))
        self._model.graph.insert_before(node, made)
        return made.outputs[0]

    def _row(self, node: ir.Node, value: ir.Value, axis: int, index: int) -> ir.Value:
        at = self._constant(np.asarray(index, np.int64), f"{self._of(node)}_row_{len(self._model.graph)}")
        return self._op(node, "Gather", [value, at], [ir.Attr("axis", ir.AttributeType.INT, axis)])

    def _stacked(self, node: ir.Node, rows: Sequence[ir.Value], axis: int, out: ir.Value) -> ir.Value:
        if not rows:
            raise UnsupportedOpError(f"{describe_node(node)}: no iteration, and {out.name!r} is stacked from them")
        if self._model.opset_imports.get("", 0) < 13:
            axes = [ir.Attr("axes", ir.AttributeType.INTS, [axis])]
            tall = [self._op(node, "Unsqueeze", [row], axes) for row in rows]
        else:
            where = self._constant(np.asarray([axis], np.int64), f"{self._of(node)}_axis_{len(self._model.graph)}")
            tall = [self._op(node, "Unsqueeze", [row, where]) for row in rows]
        return self._op(node, "Concat", tall, [ir.Attr("axis", ir.AttributeType.INT, axis)])

    def _constant(self, array: np.ndarray, name: str) -> ir.Value:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._model.graph.initializers.add(value)
        return value


def _trips(node: ir.Node) -> int | None:
    """How often a Loop runs, if that is known: a constant count, and a condition that stays true."""
    (body,) = bodies(node)
    count, start = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    begins = constant(start) if start is not None else np.asarray(True)
    if begins is None or (count is not None and constant(count) is None):
        return None
    if not bool(np.all(begins)):
        return 0
    goes_on = body.outputs[0]
    while goes_on.producer() is not None and goes_on.producer().op_type == "Identity":  # type: ignore[union-attr]
        goes_on = goes_on.producer().inputs[0]  # type: ignore[union-attr, assignment]
    known = constant_tensor(goes_on)
    stays = goes_on is body.inputs[1] or (known is not None and bool(known.numpy().all()))
    if count is None or not stays:
        return None
    return max(0, int(np.asarray(constant(count)).reshape(-1)[0]))


_KINDS = {"If": Unroller._if, "Loop": Unroller._loop, "Scan": Unroller._scan}
_KINDS |= dict.fromkeys(recurrent.GATES, Unroller._recurrent)
