"""Which values a graph's inputs may take: indices into a Gather, lengths, masks, shape-like operands.

Each input is followed through the operators that only move or cast values to those that give them a meaning; a table
says what each of these accepts. The result is what random data must respect for the graph to run and to mean something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

Sizes = Mapping[str, int]


class Range(NamedTuple):
    """Values low ≤ v < high; or, where the operand is a shape or a list of axes, the elements themselves.

    `exact` is cut or filled up with ones to the input's size.
    """

    low: int
    high: int
    exact: tuple[int, ...] | None = None

    def meet(self, other: Range) -> Range:
        """The values in both; self where there are none."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high, self.exact or other.exact) if low < high else self


Rule = Callable[[ir.Node, Sizes], "Range | None"]


def input_ranges(model: ir.Model, sizes: Sizes) -> dict[str, Range]:
    """The range of each graph input that the graph constrains. sizes: the size chosen for every symbolic dim."""
    found = {}
    for value in model.graph.inputs:
        ranges = list(_ranges(model, value, sizes))
        if ranges:
            meet = ranges[0]
            for other in ranges[1:]:
                meet = meet.meet(other)
            found[value.name or ""] = meet
    return found


def compared_values(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """Constants that the graph asks an input to be equal to, as a sample rate that one of two branches is for."""
    found = {
        value.name or "": tuple(_compared(node, index, shift) for node, index, shift in _uses(model, value))
        for value in model.graph.inputs
    }
    known = {name: tuple(v for v in values if v is not None) for name, values in found.items()}
    return {name: values for name, values in known.items() if values}


def _compared(node: ir.Node, index: int, shift: int) -> int | None:
    other = _scalar(node.inputs[1 - index]) if node.domain == "" and node.op_type == "Equal" else None
    return None if other is None else other - shift


def _ranges(model: ir.Model, start: ir.Value, sizes: Sizes) -> Iterator[Range]:
    """One range for every constraining use."""
    for node, index, shift in _uses(model, start):
        rule = _RULES.get(node.op_type, {}).get(index) if node.domain in ("", "com.microsoft") else None
        limit = rule(node, sizes) if rule else None
        if limit is not None:
            yield Range(limit.low - shift, limit.high - shift, limit.exact)


def _uses(model: ir.Model, start: ir.Value) -> Iterator[tuple[ir.Node, int, int]]:
    """Nodes that read the numbers of an input, by which of their inputs, and what has been added to it on the way."""
    todo, seen = [(start, 0)], {start}
    while todo:
        value, shift = todo.pop()
        for node, index in value.uses():
            yield node, index, shift
            for following, step in _following(model, node, index):
                if following not in seen:
                    seen.add(following)
                    todo.append((following, shift + step))


# Operator → the input whose values it passes on unchanged.
_MOVES = dict.fromkeys(
    (
        *("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile", "Slice"),
        *("Gather", "GatherElements", "GatherND", "Split", "Pad", "Clip", "Max", "Min", "ReduceMax", "ReduceMin"),
    ),
    range(1),
) | {"Concat": range(1 << 16), "Max": range(1 << 16), "Min": range(1 << 16), "Where": range(1, 3)}


def _following(model: ir.Model, node: ir.Node, index: int) -> Iterator[tuple[ir.Value, int]]:
    """Values that hold the same numbers as input `index`, with what is added to them."""
    if node.domain == "" and index in _MOVES.get(node.op_type, ()):
        yield from ((out, 0) for out in node.outputs)
    elif node.domain == "" and node.op_type in ("Add", "Sub") and not (node.op_type == "Sub" and index == 1):
        other = _scalar(node.inputs[1 - index])
        if other is not None:
            yield node.outputs[0], other if node.op_type == "Add" else -other
    function = model.functions.get(node.op_identifier())
    if function is not None and index < len(function.inputs):
        yield function.inputs[index], 0
    for attribute in node.attributes.values():
        # Loop(M, cond, v…): body(i, cond, v…); Scan(v…): body(v…). If bodies capture by object and need nothing here.
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            body = attribute.as_graph()
            if node.op_type in ("Loop", "Scan") and index < len(body.inputs) and (node.op_type == "Scan" or index >= 2):
                yield body.inputs[index], 0


def _scalar(value: ir.Value | None) -> int | None:
    """A constant whole number, else None."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    number = float(np.asarray(tensor.numpy()).reshape(()))
    return int(number) if number.is_integer() else None


def _dim(value: ir.Value | None, axis: int, sizes: Sizes) -> int | None:
    """Size of one dim of a value, where it is known."""
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else sizes.get(dim.value or "")


def _axis(node: ir.Node, default: int) -> int:
    attribute = node.attributes.get("axis")
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


def _below(size: int | None) -> Range:
    """Indices below a size. Where it is unknown only 0 is sure to exist."""
    return Range(0, max(size or 1, 1))


def _between(low: int, high: int) -> Rule:
    return lambda node, sizes: Range(low, high)


def _index_along_axis(node: ir.Node, sizes: Sizes) -> Range:
    return _below(_dim(node.inputs[0], _axis(node, 0), sizes))


def _index_tuple(node: ir.Node, sizes: Sizes) -> Range:
    """GatherND, ScatterND: one range for all the coordinates, so the smallest of the indexed dims."""
    data, depth = node.inputs[0], _dim(node.inputs[1], -1, sizes)
    batch = node.attributes.get_int("batch_dims", 0)
    dims = [_dim(data, batch + i, sizes) for i in range(depth or 0)]
    return _below(min((d for d in dims if d is not None), default=1))


def _index_into(operand: int, axis: int) -> Rule:
    return lambda node, sizes: _below(_dim(node.inputs[operand], axis, sizes) if operand < len(node.inputs) else None)


def _length_of(axis_of: Callable[[ir.Node], int]) -> Rule:
    def rule(node: ir.Node, sizes: Sizes) -> Range:
        return Range(1, (_dim(node.inputs[0], axis_of(node), sizes) or 1) + 1)

    return rule


def _one_hot(node: ir.Node, sizes: Sizes) -> Range:
    return _below(_scalar(node.inputs[1]))


def _whole(node: ir.Node, sizes: Sizes) -> Range | None:
    """A divisor or a shift: the rule is for integers, floats divide by anything."""
    value = node.inputs[1]
    return Range(1, 4) if value is not None and value.dtype in _INTEGERS else None


def _cast(node: ir.Node, sizes: Sizes) -> Range | None:
    """An integer mask: it becomes a bool, or a float that is subtracted from one (the usual attention mask)."""
    value = node.inputs[0]
    if value is None or value.dtype not in _INTEGERS:
        return None
    if node.attributes.get_int("to", 0) == ir.DataType.BOOL:
        return Range(0, 2)
    for user, index in node.outputs[0].uses():
        if user.op_type == "Sub" and index == 1 and _scalar(user.inputs[0]) == 1:
            return Range(0, 2)
    return None


def _axes(node: ir.Node, sizes: Sizes) -> Range:
    data = node.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else 1
    return Range(0, max(rank, 1), tuple(range(rank)))


def _target_shape(node: ir.Node, sizes: Sizes) -> Range:
    """Reshape, Expand: the declared output shape, else the one that always fits: everything in the first dim, or 1s."""
    out = node.outputs[0]
    dims = None if out.shape is None else [_dim(out, axis, sizes) for axis in range(len(out.shape))]
    if dims is not None and None not in dims:
        return Range(0, 1 << 31, tuple(d for d in dims if d is not None))
    return Range(-1, 1 << 31, (-1,)) if node.op_type == "Reshape" else Range(1, 2)


def _split_sizes(node: ir.Node, sizes: Sizes) -> Range | None:
    """Equal parts of the split dim, the remainder in the last."""
    total, parts = _dim(node.inputs[0], _axis(node, 0), sizes), len(node.outputs)
    if node.op_type == "SplitToSequence":  # as many parts as the operand has elements; a scalar is the size of each
        parts = _dim(node.inputs[1], 0, sizes) or 0
    if total is None or not parts:
        return Range(1, 2)
    return Range(0, total + 1, (*[total // parts] * (parts - 1), total - total // parts * (parts - 1)))


def _each(names: Iterable[str], rules: dict[int, Rule]) -> dict[str, dict[int, Rule]]:
    return dict.fromkeys(names, rules)


_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT8)
_LENGTHS = _length_of(lambda node: node.attributes.get_int("layout", 0))
_RECURRENT = {4: _LENGTHS}
_RULES: dict[str, dict[int, Rule]] = {
    # indices
    **_each(("Gather", "GatherElements", "ScatterElements", "Scatter"), {1: _index_along_axis}),
    **_each(("GatherND", "ScatterND"), {1: _index_tuple}),
    **_each(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), {1: _index_into(0, 1)}),
    "ArrayFeatureExtractor": {1: _index_into(0, -1)},
    "RoiAlign": {2: _index_into(0, 0)},
    "EmbedLayerNormalization": {0: _index_into(2, 0), 1: _index_into(4, 0), 7: _between(0, 2)},
    "OneHot": {0: _one_hot, 1: _between(3, 6)},
    "SequenceAt": {1: _between(0, 1)},
    "SequenceInsert": {2: _between(0, 1)},
    "SequenceErase": {1: _between(0, 1)},
    # lengths and counts
    **_each(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _RECURRENT),
    "ReverseSequence": {1: _length_of(lambda node: node.attributes.get_int("time_axis", 0))},
    "TopK": {1: _between(1, 2)},
    "Loop": {0: _between(1, 4)},
    "NonMaxSuppression": {2: _between(1, 5), 3: _between(0, 1), 4: _between(0, 1)},
    **_each(("BlackmanWindow", "HammingWindow", "HannWindow"), {0: _between(4, 9)}),
    # shapes, axes and the like
    "Range": {0: _between(0, 1), 1: _between(2, 6), 2: _between(1, 2)},
    "ConstantOfShape": {0: _between(1, 4)},
    "Reshape": {1: _target_shape},
    "Expand": {1: _target_shape},
    "Tile": {1: _between(1, 3)},
    **_each(("Split", "SplitToSequence"), {1: _split_sizes}),
    "Pad": {1: _between(0, 2), 3: _axes},
    "Resize": {2: _between(1, 3), 3: _between(2, 6)},
    "Upsample": {1: _between(1, 3)},
    "Slice": {1: _between(0, 1), 2: _between(2, 3), 3: _axes, 4: _between(1, 2)},
    "CumSum": {1: _between(0, 1)},
    "Trilu": {1: _between(0, 2)},
    "DFT": {1: _between(4, 5), 2: _between(1, 2)},
    **_each(("Squeeze", "Unsqueeze"), {1: _axes}),
    **_each((f"Reduce{kind}" for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2")), {1: _axes}),
    **_each(("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), {1: _axes}),
    # arithmetic that a zero or a large number breaks
    **_each(("Div", "Mod", "BitShift"), {1: _whole}),
    # masks and switches
    "Cast": {0: _cast},
    "Dropout": {1: _between(0, 1), 2: _between(0, 1)},
}
