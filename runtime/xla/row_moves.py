"""Rows in operators that move, pick and repeat elements."""

from __future__ import annotations

import math

import onnx_ir as ir

from .row_facts import Facts, Mixes, Operands, Rows, axes_of, axis_of, first, only_first, product

# What exporters write for "to the end" is at least this, which is more rows than any bucket may have.
_END = 10**9
_SLICE_OPERANDS = ("starts", "ends", "axes", "steps")


def transpose(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows = only_first(operands)
    rank = facts.rank(first(node))
    order = list(node.attributes.get_ints("perm", ()) or range(rank)[::-1])
    return [Rows(order.index(rows.axis), rows.factor)]


def squeeze(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows, axes = only_first(operands), axes_of(node, facts)
    if not axes:
        raise Mixes("the axes that it drops are not constant")
    dropped = {axis_of(node, facts, axis) for axis in axes}
    if rows.axis in dropped:
        raise Mixes("it drops the axis of the rows")
    return [Rows(rows.axis - sum(axis < rows.axis for axis in dropped), rows.factor)]


def unsqueeze(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows, axes = only_first(operands), axes_of(node, facts)
    if axes is None:
        raise Mixes("the axes that it adds are not constant")
    rank = facts.rank(first(node)) + len(axes)
    added = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in added]
    return [Rows(kept[rows.axis], rows.factor)]


def concat(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    if len(set(operands)) != 1 or operands[0] is None:
        raise Mixes("not all its operands have the same rows")
    if axis_of(node, facts, node.attributes.get_int("axis", 1)) == operands[0].axis:
        raise Mixes("it concatenates along the axis of the rows")
    return [operands[0]]


def slice_(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows = only_first(operands)
    if facts.opset("") < 10:
        given = [list(found) if (found := node.attributes.get_ints(name, ())) else None for name in _SLICE_OPERANDS]
        has_axes = given[2] is not None
    else:
        parameters = (*node.inputs[1:], None, None, None)[:4]
        given = [None if v is None else facts.ints(v) for v in parameters]
        has_axes = parameters[2] is not None
    starts, ends, axes, steps = given
    if axes is None and (has_axes or starts is None):
        raise Mixes("the axes that it cuts are not constant")
    for i, axis in enumerate(axes if axes is not None else range(len(starts or ()))):
        if axis_of(node, facts, axis) != rows.axis:
            continue
        whole = starts is not None and ends is not None and starts[i] == 0 and ends[i] >= _END
        if not whole or (steps is not None and steps[i] != 1) or (len(node.inputs) > 4 and steps is None):
            raise Mixes("it cuts the axis of the rows")
    return [rows]


def resize(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """Every element of axis 0 is resized by itself where that axis keeps its size."""
    rows = only_first(operands)
    if rows != Rows(0) or facts.row_axis(node.outputs[0]) != 0:
        raise Mixes("it may resize the axis of the rows")
    return [rows]


def pad(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows, rank = only_first(operands), facts.rank(first(node))
    if facts.opset("") < 11:
        pads: list[int] | None = list(node.attributes.get_ints("pads", ()))
    else:
        pads = facts.ints(node.inputs[1]) if node.inputs[1] is not None else None
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            raise Mixes("it pads axes that are listed apart")
    if pads is None or len(pads) != 2 * rank or pads[rows.axis] or pads[rows.axis + rank]:
        raise Mixes("it may pad the axis of the rows")
    return [rows]


def tile(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows = only_first(operands)
    repeats = facts.ints(node.inputs[1]) if node.inputs[1] is not None else None
    if repeats is None or repeats[rows.axis] != 1:
        raise Mixes("it may repeat the axis of the rows")
    return [rows]


def gather(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    data, indices = operands[:2]
    axis = axis_of(node, facts, node.attributes.get_int("axis", 0))
    assert node.inputs[1] is not None
    if data is None:
        assert indices is not None
        return [Rows(axis + indices.axis, indices.factor)]
    if indices is not None or data.axis == axis:
        raise Mixes("it picks from the axis of the rows")
    return [Rows(data.axis + (facts.rank(node.inputs[1]) - 1 if axis < data.axis else 0), data.factor)]


def one_hot(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows = only_first(operands)
    rank = facts.rank(first(node)) + 1
    return [Rows(rows.axis + (node.attributes.get_int("axis", -1) % rank <= rows.axis), rows.factor)]


def flatten(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows, value = only_first(operands), first(node)
    axis = node.attributes.get_int("axis", 1)
    axis += facts.rank(value) if axis < 0 else 0
    merged = [facts.dim(value, i) for i in range(1, axis)]
    if rows.axis != 0 or axis == 0 or None in merged:
        raise Mixes("it merges the axis of the rows with others")
    return [Rows(0, rows.factor * math.prod(d for d in merged if d is not None))]


def reshape(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """Elements keep their order, so rows stay rows where as many elements as before lie before their axis."""
    rows, value, out = only_first(operands), first(node), node.outputs[0]
    before = product(facts, value, range(rows.axis))
    after = product(facts, value, range(rows.axis + 1, facts.rank(value)))
    named = facts.row_axis(out)
    if before is not None and named is not None and product(facts, out, range(named)) == before:
        return [Rows(named)]
    target = facts.ints(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if target is None or before is None or after is None:
        raise Mixes("its result's shape cannot be followed")
    if not node.attributes.get_int("allowzero", 0):
        for axis in [i for i, size in enumerate(target) if size == 0]:
            if axis == rows.axis and math.prod(target[:axis]) == before and -1 not in target[:axis]:
                return [Rows(axis, rows.factor)]
            target[axis] = facts.dim(value, axis) or 0
    if 0 in target or -1 not in target:
        raise Mixes("its result has a fixed number of rows")
    axis = target.index(-1)
    rest = math.prod(target[axis + 1 :])
    if math.prod(target[:axis]) != before or (rows.factor * after) % rest:
        raise Mixes("it moves elements between rows")
    return [Rows(axis, rows.factor * after // rest)]


def expand(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    rows, value, out = operands[0], first(node), node.outputs[0]
    axis = facts.row_axis(out)
    offset = facts.rank(out) - facts.rank(value)
    if rows is not None and (axis != rows.axis + offset or rows.factor != 1):
        raise Mixes("its result's shape cannot be followed")
    if axis is None or (rows is None and axis >= offset and facts.dim(value, axis - offset) != 1):
        raise Mixes("its result's shape cannot be followed")
    return [Rows(axis)]


def filled(node: ir.Node, facts: Facts, operands: Operands) -> list[Rows]:
    """ConstantOfShape and Range: a result with as many rows as the inputs."""
    axis = facts.row_axis(node.outputs[0])
    if axis is None or any(operands):
        raise Mixes("its result's shape cannot be followed")
    return [Rows(axis)]
