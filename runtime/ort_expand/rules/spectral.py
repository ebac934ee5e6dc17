"""DFT and STFT of float data: ONNX Runtime's Bluestein algorithm loses digits in float, so it runs in double."""

from __future__ import annotations

from onnx import TensorProto
from pfvm.runtime.ort_expand.node import Builder, Node

# Operands that hold samples; the others are lengths and axes.
_SAMPLES = {"DFT": (0,), "STFT": (0, 2)}


def _in_double(node: Node, b: Builder) -> list[str] | None:
    if node.dtype(0) != TensorProto.FLOAT:
        return None
    inputs = node.inputs
    for index in _SAMPLES[node.op_type]:
        if node.has_input(index):
            inputs[index] = b.cast(inputs[index], TensorProto.DOUBLE)
    return [b.cast(b.copy(node, inputs=inputs)[0], TensorProto.FLOAT)]


RULES = {("", name): _in_double for name in _SAMPLES}
