"""A synthetic graph of any size that every optimizer could shrink: blocks of shape arithmetic around a layer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NODES_PER_BLOCK = 8


def chain(blocks: int) -> onnx.ModelProto:
    """x → (Shape, Gather, Concat, Reshape, Identity, MatMul, Add, Relu) × blocks → y, with a symbolic batch."""
    weights = {"w": np.eye(16, dtype=np.float32), "b": np.ones(16, np.float32), "first": [0], "width": [16]}
    nodes, x = [], "x"
    for i in range(blocks):
        for op, *names in (
            ("Shape", x, "shape"),
            ("Gather", "shape", "=first", "batch"),
            ("Concat", "batch", "=width", "target"),
            ("Reshape", x, "target", "same"),
            ("Identity", "same", "copy"),
            ("MatMul", "copy", "=w", "product"),
            ("Add", "product", "=b", "sum"),
            ("Relu", "sum", "out"),
        ):
            own = [n[1:] if n.startswith("=") else n if n == x else f"{n}{i}" for n in names]
            nodes.append(helper.make_node(op, own[:-1], own[-1:], name=own[-1]))
            if op == "Concat":
                nodes[-1].attribute.append(helper.make_attribute("axis", 0))
        x = nodes[-1].output[0]
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    x_type, y_type = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16]) for name in "xy")
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "chain", [x_type], [y_type], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
