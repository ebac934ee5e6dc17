"""Promise: compiling takes time that grows as the graph does, and a chain of shape computations collapses."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pfvm
import pytest
from onnx import TensorProto, helper, numpy_helper


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
            attributes = {"axis": 0} if op == "Concat" else {}
            nodes.append(helper.make_node(op, own[:-1], own[-1:], name=own[-1], **attributes))
        x = nodes[-1].output[0]
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    x_type, y_type = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16]) for name in "xy")
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "chain", [x_type], [y_type], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def seconds(blocks: int) -> float:
    model = chain(blocks)
    start = time.process_time()
    compiled = pfvm.optimize(model)
    used = time.process_time() - start
    assert [node.op_type for node in compiled.graph.node] == ["Gemm", "Relu"] * blocks
    return used


@pytest.mark.slow
def test_four_times_the_blocks_take_four_times_as_long() -> None:
    seconds(10)
    few = min(seconds(500) for _ in range(2))
    assert min(seconds(2000) for _ in range(2)) <= 6 * few  # quadratic work would take sixteen times as long
