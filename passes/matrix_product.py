"""A product of matrices that somebody may add to: a MatMul, or a Gemm without C."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .dtypes import FLOATS
from .matching import only_reader
from .rewriter import Rewriter
from .view import RUNTIME


def read_once(value: ir.Value | None, reader: ir.Node) -> bool:
    """Whether a node computes the value in the graph of `reader`, for one node there and nobody else."""
    found = only_reader(value) if value is not None else None
    return found is not None and found.graph is reader.graph


def is_matrix_product(node: ir.Node | None) -> bool:
    """A MatMul of two matrices of float or double, which is a Gemm."""
    return node is not None and all(
        value is not None and value.dtype in FLOATS and value.shape is not None and len(value.shape) == 2
        for value in node.inputs
    )


Product = tuple[ir.Value, ir.Value, dict[str, Any]]


def product(value: ir.Value | None, reader: ir.Node, rw: Rewriter, rule: str) -> Product | None:
    """Operands and attributes of the Gemm without C, or the MatMul of matrices, that only `reader` needs.

    Of another product, `rule` is rejected with the reason.
    """
    node = rw.producer(value, "Gemm") or rw.producer(value, "MatMul")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    why, params = _obstacle(node, reader, rw), dict[str, Any]()
    if not why and node.op_type == "Gemm":
        view = rw.view(node)
        params = {name: view.attr(name) for name in ("alpha", "transA", "transB")}
        if view.at(2) is not None or RUNTIME in params.values() or set(node.attributes) - {*params, "beta"}:
            why = "the Gemm adds something already, or an attribute is a parameter of the function"
    if why:
        rw.reject(rule, why)
        return None
    return node.inputs[0], node.inputs[1], params


def _obstacle(node: ir.Node, reader: ir.Node, rw: Rewriter) -> str:
    if not read_once(node.outputs[0], reader):
        return "the product is needed elsewhere"
    if (rw.opset(node) or 0) < 7:
        return "before opset 7, C broadcasts by an attribute"
    first = node.inputs[0]
    is_gemm = node.op_type == "Gemm" and first is not None and first.dtype in FLOATS
    if is_gemm or (node.op_type == "MatMul" and is_matrix_product(node)):
        return ""
    return "it is not proved to be a product of two matrices of float or double"
