"""Which number format every value has on the machine, and conversions where a node needs another one.

Integers and booleans are Int. "mixed": activations and the operands of products are Half; biases, statistics, losses,
optimizer state and what an update writes are Float. "float" and "half": all floating point values are that. Sums of
products are accumulated in Float whatever the operands are.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from pfvm.compiler.signature import read_manifest
from pfvm.errors import OptionError, UnsupportedOpError, did_you_mean
from pfvm.passes.provenance import location
from pfvm.passes.view import constant_tensor

from .machine import Machine
from .mngraph import CAST, move_node
from .ops.table import rule_of

KEY = "pfvm.device_dtype"
INT, HALF, FLOAT = "Int", "Half", "Float"

# A reduction's sum is a statistic; so is what the loss operators give.
_FLOAT_RESULTS = frozenset(
    (
        *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceProd", "LogSoftmax", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "ChainerCastReduceSum"),
    )
)
# Inputs from this one on are scales, biases and running statistics.
_STATISTICS = {
    "Gemm": 2,
    "Conv": 2,
    "ConvTranspose": 2,
    "BatchNormalization": 1,
    "LayerNormalization": 1,
    "RMSNormalization": 1,
    "InstanceNormalization": 1,
    "GroupNormalization": 1,
}


def device_dtype(value: ir.Value) -> str:
    """The machine's dtype of a value. Raises KeyError before `assign_dtypes`."""
    return str(value.meta[KEY])


def assign_dtypes(
    model: ir.Model, machine: Machine, float_dtype: str = "mixed", overrides: Mapping[str, str] | None = None
) -> ir.Model:
    """Gives every value a dtype and inserts MNCoreCast nodes, in place.

    float_dtype: "mixed", "float" or "half". overrides: node, or value that it computes, by name → dtype of the node's
    outputs. Raises OptionError for an override that names none, or no dtype.
    """
    _Dtypes(model, float_dtype, _chosen(model, machine, overrides or {})).run()
    return model


def _chosen(model: ir.Model, machine: Machine, overrides: Mapping[str, str]) -> dict[ir.Node, str]:
    """The overrides by node. A name of a node goes before the same name of a value."""
    if not overrides:
        return {}
    nodes = {str(out.name): node for node in model.graph for out in node.outputs if out.name}
    nodes |= {node.name: node for node in model.graph if node.name}
    chosen = {}
    for name, dtype in overrides.items():
        if name not in nodes:
            near = did_you_mean(name, nodes)
            raise OptionError(
                f"a dtype is given for {name!r}, which no node of the graph is called or computes{near}; "
                f"l3ir.txt has the values' names, Netron (pfvm view) the nodes', as in {min(nodes, default='')!r}"
            )
        if dtype == INT:
            raise OptionError(f"node {name!r}: a floating point dtype can be chosen, not {INT}")
        machine.lanes(dtype)
        chosen[nodes[name]] = dtype
    return chosen


class _Dtypes:
    def __init__(self, model: ir.Model, float_dtype: str, overrides: Mapping[ir.Node, str]) -> None:
        self.graph = model.graph
        self.entries = read_manifest(model)
        self.overrides = overrides
        self.fixed = {"float": FLOAT, "half": HALF}.get(float_dtype)
        self.casts: dict[tuple[int, str], ir.Value] = {}
        self.wanted = self._updated_values()

    def run(self) -> None:
        for node in list(self.graph):
            operand = self._operand_dtype(node)
            for i, value in enumerate(node.inputs):
                if value is not None:
                    wish = self._statistic(node, i) or operand
                    node.replace_input_with(i, self._in_dtype(value, wish, node))
            for out in node.outputs:
                out.meta[KEY] = self._result_dtype(node, out, operand)
        for value in [*self.graph.inputs, *self.graph.initializers.values()]:
            value.meta.setdefault(KEY, self.fixed or FLOAT if _is_float(value) else INT)

    # ---- one node

    def _operand_dtype(self, node: ir.Node) -> str | None:
        """The dtype that the node's floating point operands take; None: each its own."""
        if self.fixed:
            return self.fixed
        rule = rule_of(node)
        if rule.kind == "contract":
            return HALF
        if rule.kind in ("reuse", "reduce", "constant"):
            return None
        known = [self._known(value) for value in node.inputs if value is not None and _is_float(value)]
        if rule.kind == "elementwise" and (FLOAT in known or all(_is_scalar(out) for out in node.outputs)):
            return FLOAT
        if any(out in self.wanted for out in node.outputs):
            return FLOAT
        if rule.kind == "elementwise" or FLOAT not in known:
            return HALF
        return FLOAT

    def _statistic(self, node: ir.Node, i: int) -> str | None:
        if self.fixed or node.domain or i < _STATISTICS.get(node.op_type, len(node.inputs)):
            return None
        return FLOAT

    def _known(self, value: ir.Value) -> str | None:
        """The dtype of a value that is already decided; scalars and graph values adapt to the others."""
        if value.producer() is None and _is_scalar(value):
            return None
        return value.meta.get(KEY) if value.producer() is not None else self._own_dtype(value)

    def _own_dtype(self, value: ir.Value) -> str | None:
        """What a graph input or initializer is stored as whatever reads it: state of an optimizer is Float."""
        found = value.meta.get(KEY)
        return str(found) if found else (FLOAT if value in self.wanted else None)

    def _result_dtype(self, node: ir.Node, out: ir.Value, operand: str | None) -> str:
        if not _is_float(out):
            return INT
        if node in self.overrides:
            return self.overrides[node]
        if self.fixed:
            return self.fixed
        if out in self.wanted or node.op_type in _FLOAT_RESULTS:
            return FLOAT
        first = node.inputs[0] if node.inputs else None
        if operand is None and first is not None and _is_float(first):
            return device_dtype(first)
        return operand or HALF

    # ---- values

    def _in_dtype(self, value: ir.Value, wish: str | None, node: ir.Node) -> ir.Value:
        """The value in a dtype: itself, a constant of its own, or the output of an MNCoreCast before `node`."""
        if not _is_float(value):
            value.meta.setdefault(KEY, INT)
            return value
        stored = value.meta.get(KEY)
        if stored is None:
            stored = (FLOAT if value in self.wanted else None) or wish or self.fixed or HALF
            value.meta[KEY] = stored
        if wish is None or stored == wish:
            return value
        key = id(value), wish
        if key not in self.casts:
            self.casts[key] = self._another(value, wish, node)
        return self.casts[key]

    def _another(self, value: ir.Value, dtype: str, node: ir.Node) -> ir.Value:
        name = f"{value.name}_{CAST.removeprefix('MNCore')}_{dtype}"
        if constant_tensor(value) is not None and value.is_initializer():
            twin = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.graph.initializers.add(twin)
        else:
            cast = move_node(CAST, value, name)
            cast.metadata_props.update(location(node))
            self.graph.insert_before(node, cast)
            twin = cast.outputs[0]
        twin.meta[KEY] = dtype
        return twin

    def _updated_values(self) -> set[ir.Value]:
        """New state, the state that it replaces, and what elementwise steps make the one from the other: all Float.

        Gradients are among them: what a product or a sum gives to an update is written in Float.
        """
        found = self._state()
        for node in reversed(list(self.graph)):
            if rule_of(node).kind in ("elementwise", "reuse") and any(out in found for out in node.outputs):
                found.update(value for value in node.inputs if value is not None and _is_float(value))
        return found

    def _state(self) -> set[ir.Value]:
        """State that a call updates, with the outputs that do it."""
        outputs = {value.name: value for value in self.graph.outputs}
        inputs = {value.name: value for value in self.graph.inputs}
        pairs = [(inputs.get(entry.name), outputs.get(entry.output)) for entry in self.entries if entry.output]
        return {value for pair in pairs for value in pair if value is not None and _is_float(value)}


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 0


def _is_float(value: ir.Value) -> bool:
    if value.dtype is None:
        raise UnsupportedOpError(f"the plan has no place for {value.name!r}, which is no tensor of a known type")
    return value.dtype.is_floating_point()
