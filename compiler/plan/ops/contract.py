"""Products: Gemm, MatMul and convolutions. Operands are block float, sums Float, and 2 operations a multiply-add."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir
from pfvm.compiler.plan.mngraph import OVER_ROWS
from pfvm.compiler.plan.placement import is_in_dram

from .table import PadNeed, Rule, dims, size


class Product(NamedTuple):
    """Which axes of a Gemm's or MatMul's operands meet.

    data_*: axes of input 0, weight_*: of input 1. weight_axes: for each axis of input 1 the axis of input 0 that it
    is contracted or batched with, None for its columns and for an axis of size 1 that is repeated.
    """

    data_column: int
    weight_column: int
    weight_contracted: int
    weight_axes: tuple[int | None, ...]


def product(node: ir.Node) -> Product:
    """The axes of a Gemm or a MatMul whose operands have two or more."""
    data, weight = dims(node.inputs[0]), dims(node.inputs[1])
    if node.op_type == "Gemm":
        k = 0 if node.attributes.get_int("transA", 0) else 1
        n = 0 if node.attributes.get_int("transB", 0) else 1
        return Product(k, n, 1 - n, (None, k) if n == 0 else (k, None))
    k, n = len(data) - 1, len(weight) - 1
    lead = len(data) - len(weight)
    batch = [
        i + lead if i + lead >= 0 and weight[i] > 1 and weight[i] == data[i + lead] else None
        for i in range(len(weight) - 2)
    ]
    return Product(k, n, n - 1, (*batch, k, None))


def is_local(node: ir.Node) -> bool:
    """Can the product run where its operands lie? A vector operand, or a weight with more batches, runs gathered."""
    if node.op_type not in ("Gemm", "MatMul"):
        return False
    data, weight = dims(node.inputs[0]), dims(node.inputs[1])
    if len(data) < 2 or len(weight) < 2 or len(weight) > len(data) or 0 in data or 0 in weight:
        return False
    lead = len(data) - len(weight)
    return all(weight[i] in (1, data[i + lead]) for i in range(len(weight) - 2))


def is_over_rows(node: ir.Node) -> bool:
    """Is the contracted axis dealt to the cells that take rows, whose partial sums a tree adds up?"""
    return OVER_ROWS in node.metadata_props


def may_be_over_rows(node: ir.Node) -> bool:
    """Is the node a product of two matrices?"""
    return is_local(node) and len(dims(node.inputs[0])) == len(dims(node.inputs[1])) == 2


def column_of_data(node: ir.Node) -> int:
    """The axis of a product's data that the matrix units have as columns: the contracted one, or all but it."""
    axis = product(node).data_column
    return 1 - axis if is_over_rows(node) else axis


def _needs(node: ir.Node) -> tuple[PadNeed | None, ...]:
    if not is_local(node):
        return (None,) * len(node.inputs)
    axes = product(node)
    needs = [PadNeed("Zero", (axes.data_column,)), PadNeed("Zero", (axes.weight_contracted,))]
    return (*needs, *(None,) * (len(node.inputs) - 2))


def reads_dram(node: ir.Node) -> tuple[int, ...]:
    """Weight and bias, where they are the graph's own or lie in DRAM: streamed to the matrix units from there."""
    found = []
    for i, value in enumerate(node.inputs):
        if i and value is not None and (value.is_initializer() or value.is_graph_input() or is_in_dram(value)):
            found.append(i)
    return tuple(found)


def _product_flops(node: ir.Node) -> int:
    out = size(node.outputs[0])
    if node.op_type == "Gemm":
        data = dims(node.inputs[0])
        depth = data[0] if node.attributes.get_int("transA", 0) else data[1]
        bias = len(node.inputs) > 2 and node.inputs[2] is not None
        return out * (2 * depth + bias)
    return out * 2 * (dims(node.inputs[0]) or (1,))[-1]


def _conv_flops(node: ir.Node) -> int:
    weight = dims(node.inputs[1])  # [out, in / group, *kernel]
    bias = len(node.inputs) > 2 and node.inputs[2] is not None
    return size(node.outputs[0]) * (2 * math.prod(weight[1:]) + bias)


def _conv_transpose_flops(node: ir.Node) -> int:
    weight = dims(node.inputs[1])  # [in, out / group, *kernel]: each input element meets all of its slice
    bias = len(node.inputs) > 2 and node.inputs[2] is not None
    return size(node.inputs[0]) * 2 * math.prod(weight[1:]) + bias * size(node.outputs[0])


RULES = {
    ("", "Gemm"): Rule("contract", _product_flops, _needs, reads_dram=reads_dram),
    ("", "MatMul"): Rule("contract", _product_flops, _needs, reads_dram=reads_dram),
    ("", "Conv"): Rule("contract", _conv_flops, _needs, reads_dram=reads_dram),
    ("", "ConvTranspose"): Rule("contract", _conv_transpose_flops, _needs, reads_dram=reads_dram),
}
