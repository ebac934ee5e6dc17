"""Which constants of an inference model are trained."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import onnx_ir as ir
from pfvm.errors import OptionError, did_you_mean, flag

from .backward import FLOATS

# Inputs, by position, that are no weights: running statistics, sizes and scales, bounds, quantization parameters.
_NO_WEIGHT = {
    "BatchNormalization": {3, 4},
    "Resize": {1, 2},
    "Upsample": {1},
    "Clip": {1, 2},
    "Pad": {2},
    "OneHot": {2},
    "Range": {0, 1, 2},
    "QuantizeLinear": {1, 2},
    "DequantizeLinear": {1, 2},
    "DynamicQuantizeLSTM": set(range(1, 12)),
    "Dropout": {1},
}
_MOVING = frozenset(
    {"Cast", "Concat", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
# Inputs that are a weight even if they hold a single number.
_WEIGHT = {
    "Conv": {1, 2},
    "ConvTranspose": {1, 2},
    "Gemm": {1, 2},
    "MatMul": {0, 1},
    "PRelu": {1},
    "BatchNormalization": {1, 2},
    "InstanceNormalization": {1, 2},
    "GroupNormalization": {1, 2},
    "LayerNormalization": {1, 2},
    "LSTM": {1, 2, 3},
    "GRU": {1, 2, 3},
    "RNN": {1, 2, 3},
}


def select(model: ir.Model, chosen: Sequence[str], frozen: Sequence[str]) -> list[ir.Value]:
    """The parameters: float constants of the main graph that have the part of a weight.

    chosen: patterns of names (`*` matches anything); without any, every float constant of more than one element that
        is not a running statistic, a size, a bound or a quantization parameter, and single numbers that a layer reads
        as its weight or bias.
    frozen: patterns of names to leave out.

    Raises OptionError for a pattern that matches nothing, and where nothing is left.
    """
    floats = {v.name or "": v for v in model.graph.initializers.values() if v.dtype in FLOATS}
    for pattern in (*chosen, *frozen):
        if not fnmatch.filter(floats, pattern):
            raise OptionError(
                f"pattern {pattern!r} matches no float constant of the model{did_you_mean(pattern, floats)}; "
                f"there are: {_some(floats)}"
            )
    wanted = [v for v in floats.values() if (_matches(v, chosen) if chosen else _is_weight(v))]
    left = [v for v in wanted if not _matches(v, frozen)]
    if not left:
        raise OptionError(
            f"no parameter is left to train; float constants of the model: {_some(floats) or 'none'} "
            f"(choose with {flag('params')})"
        )
    return left


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


def _matches(value: ir.Value, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(value.name or "", pattern) for pattern in patterns)


def _is_weight(value: ir.Value) -> bool:
    uses = _uses(value)
    if not uses or any(index in _NO_WEIGHT.get(node.op_type, ()) for node, index in uses):
        return False
    size = value.const_value.size if value.const_value is not None else 0
    if size == 1 and value.shape:
        return any(index in _WEIGHT.get(node.op_type, ()) or _is_bias(node) for node, index in uses)
    return size > 1


def _uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Who reads the value, and where; through operators that only move elements."""
    found: list[tuple[ir.Node, int]] = []
    pending, seen = [value], {value}
    while pending:
        for node, index in pending.pop().uses():
            if node.op_type not in _MOVING:
                found.append((node, index))
            elif index == 0 or node.op_type == "Concat":
                new = [out for out in node.outputs if out not in seen]
                pending.extend(new)
                seen.update(new)
    return found


def _is_bias(node: ir.Node) -> bool:
    """Whether the node adds something to the result of a matrix product."""
    producers = [v.producer() for v in node.inputs if v is not None]
    return node.op_type == "Add" and any(p is not None and p.op_type == "MatMul" for p in producers)


def make_overridable(model: ir.Model, parameters: Iterable[ir.Value]) -> None:
    """List parameters among the inputs: initializers that a caller may override, which passes never fold."""
    for value in parameters:
        value.meta.pop("pfvm.declared_shape", None)
        if value.shape is None and value.const_value is not None:
            value.shape = ir.Shape(value.const_value.shape.numpy())
        if not value.is_graph_input():  # a state manifest's parameters are listed already
            model.graph.inputs.append(value)
