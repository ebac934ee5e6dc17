"""Walks a graph and applies the lowering rules: numpy for what is known at compile time, jax tracers for the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.errors import InvalidModelError, PfvmError, UnsupportedOpError
from pfvm.passes.loops import is_around_step

from .apart import around
from .context import HOST_ELEMENTS, Context, MisfitError, NeedsValue, Scope, TraceInstead, locate
from .layouts import adapter_of, is_channels_last, plain, settled
from .open_dims import is_open, traced
from .origins import scope_of
from .random_keys import Keys
from .range_checks import RangeChecks
from .registry import Rule, lookup
from .schema_functions import SchemaFunctions
from .weights import Weights


@dataclasses.dataclass(eq=False)
class Interpreter:
    """Evaluates nodes during one trace.

    `weights` holds the constants of the whole model, `arguments` their traced counterparts in this executable,
    `forced` the values that must be computed at trace time, whatever their size, because a rule needs them, `keys`
    what random numbers without a seed come from, and `checks` receives what must hold of indices.
    """

    functions: Mapping[tuple[str, str, str], ir.Function]
    schema_functions: SchemaFunctions
    weights: Weights
    arguments: Mapping[ir.Value, Any]
    forced: frozenset[ir.Value] | set[ir.Value]
    keys: Keys
    checks: RangeChecks = dataclasses.field(default_factory=RangeChecks)

    def run(self, nodes: Iterable[ir.Node], scope: Scope) -> None:
        for node in nodes:
            if node.op_type == "Constant" and node.domain == "" and node.outputs[0] in self.weights:
                continue
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                continue  # nobody reads it
            # The nodes of a function are those of its call.
            with around() if is_around_step(node) else scope_of(node) if scope.body is None else nullcontext():
                results = self.evaluate(node, scope)
            for value, result in zip(node.outputs, results):
                if value.name:
                    scope.env[value] = settled(value, result)

    def run_graph(
        self, graph: ir.Graph, node: ir.Node, scope: Scope, inputs: Sequence[Any], iteration: Any
    ) -> list[Any]:
        """Evaluate a body of the control-flow node `node`, which `scope` holds; returns the body's outputs.

        iteration: the number of the iteration, where the node is a loop.
        """
        scope.bodies[graph] = node
        inner = scope.nested(iteration)
        inner.env.update(zip(graph.inputs, inputs))
        self.run(graph, inner)
        return [self.read(value, inner) for value in graph.outputs]

    def read(self, value: ir.Value, scope: Scope) -> Any:
        """What stands for a value: a numpy array where it is known and small, else a jax array."""
        return plain(self._operand(value, scope))

    def _operand(self, value: ir.Value, scope: Scope) -> Any:
        """Like `read`, or a `ChannelsLast`."""
        if value in scope.env:
            return scope.env[value]
        if value in self.weights:
            small = self.weights.inline(value)
            return small if small is not None else self.arguments[value]
        raise InvalidModelError(f"value {value.name!r} is used before it is computed")

    def host_value(self, value: ir.Value, operand: Any) -> np.ndarray | None:
        """The numpy value of an operand, or None where it is known only at run time."""
        return operand if isinstance(operand, np.ndarray) else self.weights.constant(value)

    def _small_value(self, value: ir.Value, operand: Any) -> np.ndarray | None:
        """Like `host_value`, for arrays that are small enough to compute with at trace time."""
        if isinstance(operand, np.ndarray):
            return operand if operand.size <= HOST_ELEMENTS else None
        return self.weights.constant(value, at_most=HOST_ELEMENTS)

    def evaluate(self, node: ir.Node, scope: Scope) -> tuple[Any, ...]:
        operands = [None if v is None or not v.name else self._operand(v, scope) for v in node.inputs]
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            return self.call(function, node, operands, scope)
        rule = lookup(node.domain, node.op_type, scope.opset(node.domain))
        if rule is not None and rule.takes(node, operands):
            return self.apply(rule, node, operands, scope)
        function = self.schema_functions.get(node, scope.bound, scope.opset(node.domain), operands)
        if function is None:
            raise UnsupportedOpError(
                f"{locate(node, scope)} is not supported on xla devices; see: pfvm ops --device xla:cpu"
            )
        return self.call(function, node, operands, scope)

    def call(self, function: ir.Function, node: ir.Node, operands: list[Any], scope: Scope) -> tuple[Any, ...]:
        """Inline a function: evaluate its body with the node's operands and attributes."""
        padded = operands + [None] * (len(function.inputs) - len(operands))
        opsets, bound = function.opset_imports or scope.opsets, _bind(function, node, scope)
        inner = Scope(opsets, {}, bound, node, scope, function, iterations=scope.iterations)
        for value, operand in zip(function.inputs, padded):
            inner.env[value] = operand
        self.run(function, inner)
        return tuple(self._operand(value, inner) for value in function.outputs)

    def apply(self, rule: Rule, node: ir.Node, operands: list[Any], scope: Scope) -> tuple[Any, ...]:
        context = Context(node, scope, operands, self.host_value, self.run_graph, self.keys, self.checks)
        context.force_host = any(value in self.forced for value in node.outputs)
        try:
            results = self._adapted(rule, context) if is_channels_last(operands) else None
            if results is None:
                context.operands = operands = [plain(operand) for operand in operands]
                results = self._on_host(rule, context)
            if results is None:
                results = _as_tuple(self._traced(rule, context))
        except (PfvmError, NeedsValue):
            raise
        except NotImplementedError as error:
            raise context.unsupported(_first_line(error)) from error
        except Exception as error:
            types = ", ".join("absent" if o is None else f"{o.dtype}{list(o.shape)}" for o in operands)
            raise MisfitError(f"{locate(node, scope)} cannot be applied to ({types}): {_first_line(error)}") from error
        for index in range(len(results), len(node.outputs)):
            if node.outputs[index].name and (node.outputs[index].uses() or node.outputs[index].is_graph_output()):
                raise context.unsupported(f"output {index} ({node.outputs[index].name!r})")
        return results

    def _traced(self, rule: Rule, context: Context) -> Any:
        try:
            return rule.function(context, context.node, *context.operands)
        except TypeError:
            if not any(map(is_open, context.operands)):
                raise
        context.operands = [traced(operand) for operand in context.operands]
        return rule.function(context, context.node, *context.operands)

    def _adapted(self, rule: Rule, context: Context) -> tuple[Any, ...] | None:
        """Evaluate in channels-last order; None where the node's operator cannot."""
        if rule.place == "shape":
            return self._on_host(rule, context)
        adapter = adapter_of(context.node.domain, context.node.op_type)
        results = None if adapter is None else adapter(context, rule.function, context.operands)
        return None if results is None else _as_tuple(results)

    def _on_host(self, rule: Rule, context: Context) -> tuple[np.ndarray, ...] | None:
        """Evaluate at trace time where the operands are known (for "shape" rules: always); None: trace the node."""
        if rule.place == "shape":
            context.xp = np
            return _as_numpy(rule.function(context, context.node, *context.operands))
        if rule.place == "control" or (rule.place == "device" and not context.force_host):
            return None
        known = self._known_operands(context)
        if known is None:
            return None
        if rule.place == "device":
            traced = dataclasses.replace(context, operands=known)
            with jax.ensure_compile_time_eval():
                return _as_numpy(rule.function(traced, context.node, *known))
        hosted = dataclasses.replace(context, operands=known, xp=np)
        try:
            with np.errstate(all="ignore"):
                results = _as_numpy(rule.function(hosted, context.node, *known))
        except TraceInstead:
            return None
        return results if context.force_host or all(r.size <= HOST_ELEMENTS for r in results) else None

    def _known_operands(self, context: Context) -> list[np.ndarray | None] | None:
        known: list[np.ndarray | None] = []
        for value, operand in zip(context.node.inputs, context.operands):
            if operand is None or value is None:
                known.append(None)
                continue
            array = (self.host_value if context.force_host else self._small_value)(value, operand)
            if array is None:
                return None
            known.append(array)
        return known


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0]


def _bind(function: ir.Function, node: ir.Node, scope: Scope) -> dict[str, ir.Attr]:
    """The attributes that references in the function's body see: the caller's, over the function's defaults."""
    bound = {name: attribute for name, attribute in function.attributes.items() if attribute.value is not None}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            outer = scope.bound.get(attribute.ref_attr_name or "")
            if outer is not None:
                bound[name] = outer
        else:
            bound[name] = attribute
    return bound


def _as_tuple(results: Any) -> tuple[Any, ...]:
    items = results if isinstance(results, (tuple, list)) else (results,)
    return tuple(r if r is None or hasattr(r, "dtype") else jnp.asarray(r) for r in items)


def _as_numpy(results: Any) -> tuple[np.ndarray, ...]:
    items = results if isinstance(results, (tuple, list)) else (results,)
    return tuple(np.asarray(plain(r)) for r in items)
