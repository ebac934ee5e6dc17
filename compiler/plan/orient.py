"""Which operand of a product stays in the matrix units: the smaller one, because every cell gets a copy of it.

    y = Gemm(a, b)   →   y = Transpose(Gemm(b, a, transposed))      where b is computed and larger than a

A transpose moves nothing. A weight that comes from DRAM is streamed past its data and keeps its place. Products over
the rows of a batch (gradients of weights) are such: of xᵀ and g the smaller is copied, the other lies transposed.
"""

from __future__ import annotations

from collections.abc import Collection, Container

import onnx_ir as ir
from pfvm.passes.provenance import location

from .dtypes import KEY, device_dtype
from .ops import contract
from .ops.table import dims, rule_of, size
from .wishes import updated_state


def orient_products(model: ir.Model, other_way: Collection[str] = ()) -> None:
    """Swaps the operands of products whose second is computed and the larger one, in place.

    other_way: names of the outputs of products that are turned against this rule.
    """
    updated = updated_state(model)
    for node in list(model.graph):
        if is_swappable(node) and _is_better_swapped(node, updated) != (node.outputs[0].name in other_way):
            _swap(model, node)


def is_swappable(node: ir.Node) -> bool:
    """Can the operands of a node change places: a product of two matrices, or of as many pairs of them?"""
    if rule_of(node).kind != "contract" or not contract.is_local(node):
        return False
    data, weight = dims(node.inputs[0]), dims(node.inputs[1])
    return len(weight) == len(data) and weight[:-2] == data[:-2]


def _is_better_swapped(node: ir.Node, updated: Container[ir.Value]) -> bool:
    data, weight = node.inputs[0], node.inputs[1]
    return size(weight) > size(data) and not comes_from_dram(weight, updated)


def comes_from_dram(value: ir.Value | None, updated: Container[ir.Value]) -> bool:
    """An input or an initializer, maybe under another shape. State that is updated lies as its update needs it."""
    while value is not None and value.producer() is not None:
        producer = value.producer()
        assert producer is not None
        if rule_of(producer).kind != "reuse":
            return False
        value = producer.inputs[0]
    return value not in updated


def _swap(model: ir.Model, node: ir.Node) -> None:
    out, rank = node.outputs[0], len(dims(node.outputs[0]))
    perm = [*range(rank - 2), rank - 1, rank - 2]
    if rank == 2:
        product = _gemm(model, node)
    else:
        operands = [_transposed(node, value, perm) for value in (node.inputs[1], node.inputs[0])]
        product = ir.Node("", "MatMul", operands, num_outputs=1)
    product.name = node.name
    product.metadata_props.update(node.metadata_props)
    result = product.outputs[0]
    result.name, result.type = f"{out.name}_Transposed", out.type
    result.shape = ir.Shape([dims(out)[i] for i in perm])
    result.meta[KEY] = device_dtype(out)
    model.graph.insert_before(node, product)
    back = _transposed(node, result, perm)
    name, out.name = out.name, None
    back.name, back.const_value = name, None
    back.metadata_props.update(out.metadata_props)
    out.replace_all_uses_with(back, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


def _gemm(model: ir.Model, node: ir.Node) -> ir.Node:
    """The product of two matrices the other way round."""
    first = node.attributes.get_int("transA", 0) if node.op_type == "Gemm" else 0
    second = node.attributes.get_int("transB", 0) if node.op_type == "Gemm" else 0
    attributes = [attr for name, attr in node.attributes.items() if name in ("alpha", "beta")]
    attributes += [
        ir.Attr(name, ir.AttributeType.INT, 1) for name, on in (("transA", 1 - second), ("transB", 1 - first)) if on
    ]
    inputs = [node.inputs[1], node.inputs[0]]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        inputs.append(_upright(model, node, bias))
    return ir.Node("", "Gemm", inputs, attributes, num_outputs=1)


def _upright(model: ir.Model, node: ir.Node, bias: ir.Value) -> ir.Value:
    """A bias of the other way round: its columns as rows."""
    rank = len(dims(bias))
    if rank == 0:
        return bias
    if rank == 2:
        return _transposed(node, bias, [1, 0])
    inputs, attributes = [bias], []
    if model.opset_imports.get("", 0) < 13:
        attributes.append(ir.Attr("axes", ir.AttributeType.INTS, [1]))
    else:
        inputs.append(_axis(model))
    upright = ir.Node("", "Unsqueeze", inputs, attributes, num_outputs=1)
    return _reused(node, bias, upright, (*dims(bias), 1), "Upright")


def _axis(model: ir.Model) -> ir.Value:
    name = "pfvm.axis_1"
    known = model.graph.initializers.get(name)
    if known is not None:
        return known
    tensor = ir.tensor([1], dtype=ir.DataType.INT64, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([1]), const_value=tensor)
    value.meta[KEY] = "Int"
    model.graph.initializers.add(value)
    return value


def _transposed(node: ir.Node, value: ir.Value | None, perm: list[int]) -> ir.Value:
    assert value is not None
    transpose = ir.Node("", "Transpose", [value], [ir.Attr("perm", ir.AttributeType.INTS, perm)], num_outputs=1)
    return _reused(node, value, transpose, tuple(dims(value)[i] for i in perm), "Transpose")


def _reused(node: ir.Node, value: ir.Value, made: ir.Node, shape: tuple[int, ...], word: str) -> ir.Value:
    """Puts a node that moves nothing before `node`."""
    out = made.outputs[0]
    out.name = made.name = f"{value.name}_{word}_of_{node.name or node.outputs[0].name}"
    out.type, out.shape = value.type, ir.Shape(shape)
    out.meta[KEY] = device_dtype(value)
    made.metadata_props.update(location(node))
    assert node.graph is not None
    node.graph.insert_before(node, made)
    return out
