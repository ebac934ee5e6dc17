"""A model's answers in float64: what the exact emulator is compared with where no PyTorch function stands behind it.

By XLA, which shares no code with the emulator. ONNX Runtime is no judge here: it has no float64 convolutions, and its
float32 sigmoid is off by 2e-2 (relative L2) where results are tiny, as in the text detector's on noise.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
from pfvm.compiler.exporter import to_proto

_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


def in_float64(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of xla:cpu with every float32 of the model, and of the feeds, made float64."""
    proto = to_proto(model)
    _widen_graph(proto.graph)
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}
    return pfvm.load(proto, device="xla:cpu")(wide)


def _widen_graph(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == _FLOAT:
            value.type.tensor_type.elem_type = _DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen_graph(attribute.g)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _FLOAT:
                attribute.i = _DOUBLE


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _FLOAT:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
