"""Loop and Scan in one form: what is carried, what is collected, how often the body runs."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .rewriter import Rewriter
from .view import constant, is_parameterized

STEPS = "pfvm.steps"
"""Key in the `metadata_props` of the loop that runs the training steps of one call, and of the nodes in its body that
are no part of the step (`AROUND`): those that take its batch, and end the loop."""
AROUND = "around"


@dataclasses.dataclass(frozen=True)
class LoopForm:
    """A Loop, or a Scan of opset ≥ 9.

    `initial[i]` goes in, the body's `formals[i]` becomes its `following[i]`, and `finals[i]` comes out; `pieces[j]` of
    every iteration are put together as `collected[j]`. A Loop's body has two inputs before and one output before those.
    """

    node: ir.Node
    body: ir.Graph
    carried: int
    first_input: int  # of the node and the body
    first_output: int  # of the body

    @property
    def initial(self) -> list[ir.Value | None]:
        return list(self.node.inputs)[self.first_input : self.first_input + self.carried]

    @property
    def formals(self) -> list[ir.Value]:
        return list(self.body.inputs)[self.first_input : self.first_input + self.carried]

    @property
    def following(self) -> list[ir.Value]:
        return list(self.body.outputs)[self.first_output : self.first_output + self.carried]

    @property
    def pieces(self) -> list[ir.Value]:
        return list(self.body.outputs)[self.first_output + self.carried :]

    @property
    def finals(self) -> list[ir.Value]:
        return list(self.node.outputs)[: self.carried]

    @property
    def collected(self) -> list[ir.Value]:
        return list(self.node.outputs)[self.carried :]


def loop_form(node: ir.Node, rw: Rewriter) -> LoopForm | None:
    """None for another operator, for Scan-8, and for one that leaves outputs out."""
    if node.op_type not in ("Loop", "Scan") or not rw.is_standard(node):
        return None
    attr = node.attributes.get("body")
    if attr is None or is_parameterized(node):
        return None
    if node.op_type == "Loop":
        form = LoopForm(node, attr.as_graph(), len(node.inputs) - 2, 2, 1)
    elif (rw.opset(node) or 0) >= 9:
        form = LoopForm(node, attr.as_graph(), len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0), 0, 0)
    else:
        return None
    whole = len(node.outputs) + form.first_output == len(form.body.outputs) and len(node.inputs) == len(
        form.body.inputs
    )
    return form if whole and form.carried >= 0 else None


def runs_steps(node: ir.Node) -> bool:
    """Is this the loop around a training step? Its body computes bit for bit what the step alone does.

    So nothing that rounds leaves it: a compiler that rounds a product and a sum in it once rounds one of each outside.
    """
    return STEPS in node.metadata_props and not is_around_step(node)


def is_around_step(node: ir.Node) -> bool:
    """Is it in the body of such a loop without being a part of the step?"""
    return node.metadata_props.get(STEPS) == AROUND


def trip_count(form: LoopForm, rw: Rewriter) -> int | None:
    """How often the body runs, when that is known."""
    node = form.node
    if node.op_type == "Scan":
        scanned = node.inputs[form.carried] if len(node.inputs) > form.carried else None
        if scanned is None or scanned.shape is None or node.attributes.get("scan_input_axes") is not None:
            return None
        dim = scanned.shape[0] if len(scanned.shape) else None
        return dim if isinstance(dim, int) else None
    condition = constant(node.inputs[1])
    if condition is not None and condition.size == 1 and not condition.reshape(-1)[0]:
        return 0
    if node.inputs[1] is not None and condition is None:
        return None
    limit = constant(node.inputs[0])
    if limit is None or limit.size != 1 or not _goes_on(form.body, rw):
        return None
    return max(0, int(limit.reshape(-1)[0]))


def _goes_on(body: ir.Graph, rw: Rewriter) -> bool:
    """Whether a Loop's body never stops it: its condition is true, or the one that it was given."""
    condition: ir.Value | None = body.outputs[0]
    while condition is not None:
        if condition is body.inputs[1]:
            return True
        known = constant(condition)
        if known is not None:
            return known.size == 1 and bool(known.reshape(-1)[0])
        producer = rw.producer(condition, "Identity")
        condition = producer.inputs[0] if producer is not None else None
    return False
