"""unroll-loops: a short Loop or Scan of known length becomes its iterations."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .dims import static_shape
from .effects import Effect
from .loops import LoopForm, loop_form, runs_steps, trip_count
from .rewriter import Rewriter
from .splice import body_nodes, may_replace_outputs, replace_outputs, splice

_RULE = "unrolled loop"


@dataclasses.dataclass(frozen=True)
class UnrollLoops:
    """Unroll a Loop or Scan that runs a known number of times, where that makes at most `max_nodes` nodes.

    before:  y = Loop(2, true, x) { (i, c, a) → c, Exp(a) }       after:  y = Exp(Exp(x))
    before:  y = Scan(x, z[2]) { (a, b) → Add(a, b) }             after:  y = Add(Add(x, Gather(z, 0)), Gather(z, 1))

    Collected outputs are concatenated; a Scan must go forward along first axes. A body that draws numbers or is in
    training mode is left alone: a seeded operator draws other numbers in every iteration.
    """

    name: ClassVar[str] = "unroll-loops"
    max_nodes: int = 32

    def run(self, rw: Rewriter) -> None:
        for graph in list(rw.scopes()):
            for node in list(graph):
                form = loop_form(node, rw) if node.graph is not None else None
                trips = None if form is None else trip_count(form, rw)
                if form is not None and self._may_unroll(form, trips, rw):
                    _unroll(form, trips or 0, rw)
                    rw.matched(_RULE)

    def _may_unroll(self, form: LoopForm, trips: int | None, rw: Rewriter) -> bool:
        node = form.node
        if not any(out.uses() or out.is_graph_output() for out in node.outputs):
            return False
        if runs_steps(node):
            return rw.reject(_RULE, "a training step is computed as it is alone, bit for bit")
        if trips is None:
            return rw.reject(_RULE, "how often it runs is not known", node)
        if not may_replace_outputs(node, rw):
            return rw.reject(_RULE, "before opset 16, a graph output that is a sequence cannot be copied", node)
        if rw.effect(node) is not Effect.PURE:
            return rw.reject(_RULE, "the body draws numbers", node)
        if trips > 1 and trips * body_nodes(node) > self.max_nodes:
            return rw.reject(_RULE, f"it would make more nodes than max_nodes={self.max_nodes}", node)
        if any(value is None for value in form.initial):
            return rw.reject(_RULE, "a carried value is absent at first", node)
        if node.op_type == "Scan" and not _forward(form, trips):
            return rw.reject(_RULE, "the Scan goes backward or along other axes", node)
        if trips == 0 and not all(_empty(piece) is not None for piece in form.pieces):
            return rw.reject(_RULE, "it collects nothing, of a shape that only running the body tells", node)
        return True


def _forward(form: LoopForm, trips: int) -> bool:
    lists = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")
    attributes = [attr for name in lists if (attr := form.node.attributes.get(name)) is not None]
    return trips > 0 and all(not attr.is_ref() and not any(attr.as_ints()) for attr in attributes)


def _empty(piece: ir.Value) -> np.ndarray | None:
    """What is collected in no iteration at all, where the dims of a piece are known."""
    shape = static_shape(piece)
    if shape is None or piece.dtype is None or piece.dtype == ir.DataType.STRING:
        return None
    return np.zeros((0, *shape), piece.dtype.numpy())


def _unroll(form: LoopForm, trips: int, rw: Rewriter) -> None:
    node = form.node
    carried = [value for value in form.initial if value is not None]
    pieces: list[list[ir.Value]] = [[] for _ in form.collected]
    for i in range(trips):
        number = rw.constant(np.array(np.int64(i)), f"{node.outputs[0].name}_iteration", node)
        if node.op_type == "Loop":
            goes_on = rw.constant(np.array(np.bool_(True)), f"{node.outputs[0].name}_condition", node)
            given = [number, goes_on, *carried]
        else:
            scanned = [value for value in list(node.inputs)[form.carried :] if value is not None]
            parts = [rw.op("Gather", value, number, at=node, axis=0).outputs[0] for value in scanned]
            given = [*carried, *parts]
        outputs = splice(form.body, node, dict(zip(form.body.inputs, given)), rw)[form.first_output :]
        carried = outputs[: form.carried]
        for of_this, piece in zip(pieces, outputs[form.carried :]):
            of_this.append(rw.op("Unsqueeze", piece, at=node, axes=[0]).outputs[0])
    joined = [_joined(all_, piece, node, rw) for all_, piece in zip(pieces, form.pieces, strict=True)]
    replace_outputs(node, [*carried, *joined], rw)


def _joined(parts: list[ir.Value], piece: ir.Value, node: ir.Node, rw: Rewriter) -> ir.Value:
    if not parts:
        nothing = _empty(piece)
        assert nothing is not None, "checked before"
        return rw.constant(nothing, f"{node.outputs[0].name}_nothing", node)
    return parts[0] if len(parts) == 1 else rw.op("Concat", *parts, at=node, axis=0).outputs[0]
