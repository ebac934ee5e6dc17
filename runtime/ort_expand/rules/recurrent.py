"""RNN, GRU and LSTM with the batch first: ONNX Runtime has the other layout only."""

from __future__ import annotations

from pfvm.runtime.ort_expand.node import Builder, Node

# Input positions of initial_h and initial_c, which are [batch, directions, hidden] in this layout.
_STATES = {"RNN": (5,), "GRU": (5,), "LSTM": (5, 6)}


def _batch_first(node: Node, b: Builder) -> list[str] | None:
    """x [batch, time, input] → Transpose → layout 0 → Transpose of every output."""
    if not node.attr("layout"):
        return None
    inputs = node.inputs
    for index in (0, *_STATES[node.op_type]):
        if node.has_input(index):
            inputs[index] = b.op("Transpose", inputs[index], perm=[1, 0, 2])
    results = b.copy(node, inputs=inputs, layout=None)
    perms = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
    return [b.op("Transpose", name, perm=perm) if name else "" for name, perm in zip(results, perms)]


RULES = {("", name): _batch_first for name in _STATES}
