"""unroll-loops: a short Loop of known length becomes its iterations."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .effects import Effect
from .loops import LoopForm, loop_form, trip_count
from .rewriter import Rewriter
from .splice import body_nodes, may_replace_outputs, replace_outputs, splice

_RULE = "unrolled loop"


@dataclasses.dataclass(frozen=True)
class UnrollLoops:
    """Unroll a Loop that runs a known number of times, where that makes at most `max_nodes` nodes.

    before:  y = Loop(2, true, x) { (i, c, a) → c, Exp(a) }       after:  y = Exp(Exp(x))

    Collected outputs are concatenated. A body that draws numbers or is in training mode is left alone: a seeded
    operator draws other numbers in every iteration.
    """

    name: ClassVar[str] = "unroll-loops"
    max_nodes: int = 32

    def run(self, rw: Rewriter) -> None:
        for graph in list(rw.scopes()):
            for node in list(graph):
                form = loop_form(node, rw) if node.graph is not None and node.op_type == "Loop" else None
                trips = None if form is None else trip_count(form, rw)
                if form is not None and self._may_unroll(form, trips, rw):
                    _unroll(form, trips or 0, rw)
                    rw.matched(_RULE)

    def _may_unroll(self, form: LoopForm, trips: int | None, rw: Rewriter) -> bool:
        node = form.node
        if not any(out.uses() or out.is_graph_output() for out in node.outputs):
            return False
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
        if trips == 0 and form.collected:
            return rw.reject(_RULE, "it collects nothing, of a shape that only the body tells", node)
        return True


def _unroll(form: LoopForm, trips: int, rw: Rewriter) -> None:
    node = form.node
    carried = [value for value in form.initial if value is not None]
    pieces: list[list[ir.Value]] = [[] for _ in form.collected]
    for i in range(trips):
        number, goes_on = (
            rw.constant(np.array(content), f"{node.outputs[0].name}_{what}", node)
            for content, what in ((np.int64(i), "iteration"), (np.bool_(True), "condition"))
        )
        formals = dict(zip(form.body.inputs, [number, goes_on, *carried]))
        outputs = splice(form.body, node, formals, rw)[1:]
        carried = outputs[: form.carried]
        for of_this, piece in zip(pieces, outputs[form.carried :]):
            of_this.append(rw.op("Unsqueeze", piece, at=node, axes=[0]).outputs[0])
    joined = [all_[0] if len(all_) == 1 else rw.op("Concat", *all_, at=node, axis=0).outputs[0] for all_ in pieces]
    replace_outputs(node, [*carried, *joined], rw)
