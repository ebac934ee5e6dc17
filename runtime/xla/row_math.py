"""Rows in operators that compute: from which axis of the operands to which axis of the result they go."""

from __future__ import annotations

import onnx_ir as ir

from .row_facts import Facts, Mixes, Operands, Rows, Rule, axes_of, axis_of, only_first


def elementwise(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """Operands are broadcast against each other; the rows of all of them must lie on the same axis."""
    given = [(v, rows) for v, rows in zip(node.inputs, operands) if v is not None and v.name]
    rank = max(facts.rank(v) for v, _ in given)
    aligned = {Rows(rows.axis + rank - facts.rank(v), rows.factor) for v, rows in given if rows is not None}
    if len(aligned) != 1:
        raise Mixes("it combines rows on different axes")
    (result,) = aligned
    for value, rows in given:
        axis = result.axis - (rank - facts.rank(value))
        if rows is None and axis >= 0 and facts.dim(value, axis) != 1:
            raise Mixes(f"{value.name!r} has a size of its own along the rows")
    return [result] * len(node.outputs)


def dropout(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if (training is not None and facts.flag(training) is not False) or facts.opset("") < 7:
        raise Mixes("it may draw random numbers")
    return [only_first(operands)] * len(node.outputs)


def quantize(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """QuantizeLinear and DequantizeLinear: one scale, or one for each index of an axis."""
    rows, scale = only_first(operands), node.inputs[1]
    assert scale is not None
    rank = facts.rank(scale)
    if rank > 1 or (rank == 1 and axis_of(node, facts, node.attributes.get_int("axis", 1)) == rows.axis):
        raise Mixes("rows have scales of their own")
    return [rows]


def by_batch(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """Attention and RotaryEmbedding: each element of the batch by itself, beside what is the same for all of them."""
    found = {rows for rows in operands if rows is not None}
    if len(found) != 1 or next(iter(found)).axis != 0:
        raise Mixes("its rows are not those of the batch")
    is_attention = node.op_type == "Attention"
    for index, (value, rows) in enumerate(zip(node.inputs, operands)):
        if value is None or not value.name:
            continue
        of_all = facts.rank(value) < (4 if is_attention else 3) or facts.dim(value, 0) == 1
        for_all = of_all and (index == 3 if is_attention else index in (1, 2))
        if rows is None and not for_all:
            raise Mixes(f"{value.name!r} has a size of its own along the rows")
        if rows is not None and is_attention and index == 3 and facts.rank(value) != 4:
            raise Mixes("the mask's rows are not those of the batch")
    return list(found) * len(node.outputs)


def matmul(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    a, b = node.inputs[0], node.inputs[1]
    rows_a, rows_b, *others = operands
    assert a is not None and b is not None
    ranks = facts.rank(a), facts.rank(b)
    if any(others):
        raise Mixes("a zero point has rows")
    if min(ranks) < 2:
        if rows_a is None or rows_b is not None or rows_a.axis >= ranks[0] - 1:
            raise Mixes("it sums over the rows")
        return [rows_a]
    rank = max(ranks)
    found = set()
    for rows, own, summed in ((rows_a, ranks[0], ranks[0] - 1), (rows_b, ranks[1], ranks[1] - 2)):
        if rows is None:
            continue
        if rows.axis == summed:
            raise Mixes("it sums over the rows")
        found.add((Rows(rows.axis + rank - own, rows.factor), rows.axis < own - 2))
    if len(found) != 1 or (rows_a is not None and rows_b is not None and not next(iter(found))[1]):
        raise Mixes("it combines every row with every other")
    ((result, is_batch),) = found
    for value, rows, own in ((a, rows_a, ranks[0]), (b, rows_b, ranks[1])):
        axis = result.axis - (rank - own)
        if rows is None and is_batch and axis >= 0 and facts.dim(value, axis) != 1:
            raise Mixes(f"{value.name!r} has a size of its own along the rows")
    return [result]


def gemm(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    a, b, c = (*operands, None)[:3]
    if a is None or b is not None or a.axis != (1 if node.attributes.get_int("transA", 0) else 0):
        raise Mixes("it sums over the rows")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and c is None and facts.rank(bias) == 2 and facts.dim(bias, 0) != 1:
        raise Mixes("its bias has a size of its own along the rows")
    result = Rows(0, a.factor)
    if c is not None and c != result:
        raise Mixes("it combines rows on different axes")
    return [result]


def along(default: int) -> Rule:
    """Works along one axis, `axis`, which must not be that of the rows: Softmax, Split, TopK, ArgMax, …"""

    def rule(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
        rows = only_first(operands)
        axis = axis_of(node, facts, node.attributes.get_int("axis", default))
        if axis == rows.axis:
            raise Mixes("it works along the axis of the rows")
        if node.op_type in ("ArgMax", "ArgMin") and not node.attributes.get_int("keepdims", 1) and axis < rows.axis:
            rows = Rows(rows.axis - 1, rows.factor)
        return [rows] * len(node.outputs)

    return rule


def from_axis(default: int) -> Rule:
    """Works over all axes from `axis` on: LayerNormalization, Softmax before opset 13."""

    def rule(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
        rows = only_first(operands)
        if axis_of(node, facts, node.attributes.get_int("axis", default)) <= rows.axis:
            raise Mixes("it works over the axis of the rows")
        return [rows] * len(node.outputs)

    return rule


def softmax(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    return (along(-1) if facts.opset("") >= 13 else from_axis(1))(node, facts, operands)


def cumulative(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows = only_first(operands)
    axis = facts.ints(node.inputs[1]) if node.inputs[1] is not None else None
    if axis is None or axis_of(node, facts, axis[0]) == rows.axis:
        raise Mixes("it sums along the axis of the rows")
    return [rows]


def reduce(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows = only_first(operands)
    axes = axes_of(node, facts)
    if not axes:
        if node.attributes.get_int("noop_with_empty_axes", 0) and axes is not None:
            return [rows]
        raise Mixes("it reduces over all axes")
    reduced = {axis_of(node, facts, axis) for axis in axes}
    if rows.axis in reduced:
        raise Mixes("it reduces over the rows")
    gone = 0 if node.attributes.get_int("keepdims", 1) else sum(axis < rows.axis for axis in reduced)
    return [Rows(rows.axis - gone, rows.factor)]


def batched(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """Treats every element of axis 0 by itself: convolutions, pools, normalizations of images."""
    rows = only_first(operands)
    if rows.axis != 0 or len(node.outputs) > 1 or node.attributes.get_int("training_mode", 0) == 1:
        raise Mixes("it works over the axis of the rows")
    return [rows]


def recurrent(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """X is [sequence, rows, features], initial states are [directions, rows, features], lengths are [rows]."""
    expected = {0: 1, 4: 0, 5: 1, 6: 1}
    wrong = any(r is not None and r != Rows(expected.get(i, -1)) for i, r in enumerate(operands))
    given = [i for i in expected if i < len(node.inputs) and node.inputs[i] is not None]
    if node.attributes.get_int("layout", 0) or wrong or any(operands[i] is None for i in given):
        raise Mixes("its operands do not all have the same rows")
    return [Rows(2), *[Rows(1)] * (len(node.outputs) - 1)][: len(node.outputs)]
