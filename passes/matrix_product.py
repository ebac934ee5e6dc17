"""A product of matrices that somebody may add to: a MatMul, or a Gemm without C."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rewriter import Rewriter
from .view import RUNTIME

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""In half precision a sum with C would no longer be rounded in between."""


def read_once(value: ir.Value | None, reader: ir.Node) -> bool:
    """Whether a node computes the value in the graph of `reader`, for nobody else."""
    producer = value.producer() if value is not None else None
    if value is None or producer is None or producer.graph is not reader.graph:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()


def is_matrix_product(node: ir.Node | None) -> bool:
    """A MatMul of two matrices of float or double, which is a Gemm."""
    return node is not None and all(
        value is not None and value.dtype in _FLOATS and value.shape is not None and len(value.shape) == 2
        for value in node.inputs
    )


def product(value: ir.Value | None, reader: ir.Node, rw: Rewriter) -> tuple[ir.Value, ir.Value, dict[str, Any]] | None:
    """Operands and attributes of the Gemm without C, or the MatMul of matrices, that only `reader` needs."""
    if not read_once(value, reader):
        return None
    node = rw.producer(value, "Gemm") or rw.producer(value, "MatMul")
    if node is None or (rw.opset(node) or 0) < 7:  # before 7, C broadcasts by an attribute
        return None
    a, b = node.inputs[:2]
    if a is None or b is None:
        return None
    if node.op_type == "MatMul":
        return (a, b, {}) if is_matrix_product(node) else None
    view = rw.view(node)
    params = {name: view.attr(name) for name in ("alpha", "transA", "transB")}
    if view.at(2) is not None or RUNTIME in params.values() or set(node.attributes) - {*params, "beta"}:
        return None
    return (a, b, params) if a.dtype in _FLOATS else None
