"""How values flow between a control-flow node and its bodies: what an output, or a body's input, is computed from."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.passes.effects import bodies

Reads = list[ir.Value | None]


def output_reads(node: ir.Node, value: ir.Value) -> Reads:
    """What output `value` of an If, Loop or Scan is computed from: the node's inputs and values of its bodies."""
    index = value.index() or 0
    if node.op_type == "If":
        return [node.inputs[0], *(body.outputs[index] for body in bodies(node))]
    (body,) = bodies(node)
    control = _iterations(node, body)
    initial = _initial(node)
    own: Reads = [initial[index]] if index < _states(node, body) else []
    return [*control, *own, body.outputs[index + _hidden_outputs(node)]]


def body_input_reads(node: ir.Node, value: ir.Value) -> Reads:
    """What input `value` of a body of a Loop or Scan is computed from, over all iterations."""
    (body,) = bodies(node)
    index = next(i for i, v in enumerate(body.inputs) if v is value)
    state = index - (2 if node.op_type == "Loop" else 0)
    if state < 0:
        return _iterations(node, body)
    if state >= _states(node, body):
        return [_initial(node)[state]]  # a slice of a scan input
    return [*_iterations(node, body), _initial(node)[state], body.outputs[state + _hidden_outputs(node)]]


def _iterations(node: ir.Node, body: ir.Graph) -> Reads:
    """What the number of iterations follows from; a Scan's is a shape."""
    return [*node.inputs[:2], body.outputs[0]] if node.op_type == "Loop" else []


def _initial(node: ir.Node) -> Reads:
    """The node's inputs that correspond to the body's, states first."""
    if node.op_type == "Loop":
        return list(node.inputs[2:])
    given = len(bodies(node)[0].inputs)
    return list(node.inputs[len(node.inputs) - given :])  # opset 8 has the sequence lengths before them


def _states(node: ir.Node, body: ir.Graph) -> int:
    if node.op_type == "Loop":
        return len(body.inputs) - 2
    return len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)


def _hidden_outputs(node: ir.Node) -> int:
    """Outputs of the body that are none of the node's: the condition of a Loop."""
    return 1 if node.op_type == "Loop" else 0


def follows_iteration(body: ir.Graph, value: ir.Value) -> bool:
    """Is `value` of a Loop's body computed from the counter or a carried value, as far as its own nodes show?"""
    changing = {*body.inputs[:1], *body.inputs[2:]}
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        if current in changing:
            return True
        node = current.producer()
        reads = [v for v in node.inputs if v is not None and v not in seen] if node is not None else []
        seen.update(reads)
        pending += reads
    return False
