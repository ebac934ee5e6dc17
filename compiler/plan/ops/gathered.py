"""Operators that collect their operands through the tree: what they read lies in other cells."""

from __future__ import annotations

import math

import onnx_ir as ir

from .table import Rule, dims, size


def _pool_flops(node: ir.Node) -> int:
    return size(node.outputs[0]) * math.prod(int(extent) for extent in node.attributes.get_ints("kernel_shape", ()))


def _recurrent_flops(node: ir.Node) -> int:
    sequence, batch, _ = dims(node.inputs[0])
    return 2 * sequence * batch * (size(node.inputs[1]) + size(node.inputs[2]))


def _integer_product_flops(node: ir.Node) -> int:
    return 2 * size(node.outputs[0]) * (dims(node.inputs[0]) or (1,))[-1]


def _integer_conv_flops(node: ir.Node) -> int:
    weight = node.inputs[3 if node.op_type == "QLinearConv" else 1]
    return 2 * size(node.outputs[0]) * math.prod(dims(weight)[1:])


def _nothing(node: ir.Node) -> int:
    return 0


_MOVING = """
Slice Concat Split Gather GatherElements GatherND Expand Tile Pad DepthToSpace SpaceToDepth Trilu ReverseSequence
ConstantOfShape Range Shape Size EyeLike Compress
"""

RULES = {("", name): Rule("gathered", flops=_nothing) for name in _MOVING.split()}
RULES |= {("", name): Rule("gathered", flops=_pool_flops) for name in ("MaxPool", "AveragePool", "LpPool")}
RULES |= {("", name): Rule("gathered", flops=_recurrent_flops) for name in ("LSTM", "GRU", "RNN")}
RULES |= {("", name): Rule("gathered", flops=_integer_product_flops) for name in ("MatMulInteger", "QLinearMatMul")}
RULES |= {("", name): Rule("gathered", flops=_integer_conv_flops) for name in ("ConvInteger", "QLinearConv")}
