"""What a lowering rule may ask about the node that it lowers."""

from __future__ import annotations

import dataclasses
import math
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.errors import InvalidModelError, PfvmError, UnsupportedOpError, describe_node

from . import attributes
from .open_dims import is_open
from .random_keys import Keys
from .range_checks import RangeChecks

# Results of trace-time evaluation above this many elements are traced instead, so that they do not become large
# constants of the executable. Shapes, axes, pads and scales are far below.
HOST_ELEMENTS = 4096


class TraceInstead(Exception):
    """A rule asked to compute with numpy cannot or should not (a large result); the interpreter traces the node."""


class MisfitError(InvalidModelError):
    """Sizes that do not go together: a fault of the model, or of inputs whose shapes it leaves open."""


class DataDependentShapeError(UnsupportedOpError):
    """A shape that follows from the data of a run-time input: XLA has no program for it, another engine may.

    `node` is the one to cut out.
    """

    def __init__(self, message: str, node: ir.Node) -> None:
        super().__init__(message)
        self.node = node


class NeedsValue(Exception):
    """A rule needs `value` at compile time, and it is not known there.

    `error` is what to raise where it cannot be known (None: a message that names the input it depends on), and
    `otherwise` another value whose knowledge would do as well.
    """

    def __init__(self, value: ir.Value, node: ir.Node, scope: Scope, error: PfvmError | None = None) -> None:
        super().__init__(value.name)
        self.value, self.node, self.scope, self.error = value, node, scope, error
        self.otherwise: NeedsValue | None = None

    def or_else(self, other: NeedsValue) -> NeedsValue:
        """This request, with `other` as its last alternative."""
        last = self
        while last.otherwise is not None:
            last = last.otherwise
        last.otherwise = other
        return self


@dataclasses.dataclass(eq=False)
class Scope:
    """One activation of the main graph or of a function body.

    `bound` holds the attributes of the calling node (for references), `call` and `parent` lead to the caller, and
    `bodies` maps the bodies of control-flow nodes that were met in this activation to these nodes. `iterations` are the
    numbers of the iterations that this activation is in, outermost first.
    """

    opsets: Mapping[str, int]
    env: MutableMapping[ir.Value, Any]
    bound: Mapping[str, ir.Attr] = dataclasses.field(default_factory=dict)
    call: ir.Node | None = None
    parent: Scope | None = None
    body: ir.Function | None = None
    bodies: dict[ir.Graph, ir.Node] = dataclasses.field(default_factory=dict)
    iterations: tuple[Any, ...] = ()

    def nested(self, iteration: Any = None) -> Scope:
        """The same activation as a control-flow body sees it: what the body computes stays in there."""
        inside = self.iterations if iteration is None else (*self.iterations, iteration)
        return dataclasses.replace(self, env=ChainMap({}, self.env), iterations=inside)

    def opset(self, domain: str) -> int:
        return self.opsets.get(domain, self.opsets.get("ai.onnx", 1) if domain == "" else 1)


def locate(node: ir.Node, scope: Scope) -> str:
    """`describe_node`, with the path through the bodies that hold the node."""
    path = describe_node(node)
    owner = scope.bodies.get(node.graph) if isinstance(node.graph, ir.Graph) else None
    return path if owner is None else f"{path} in a body of {locate(owner, scope)}"


@dataclasses.dataclass(eq=False)
class Context:
    """Handed to every rule. `xp` is numpy while the node is evaluated at trace time, else jax.numpy.

    `overrides` are attribute values for operands in another order than the model's (see `layouts`).
    """

    node: ir.Node
    scope: Scope
    operands: Sequence[Any]
    host_value: Callable[[ir.Value, Any], np.ndarray | None]
    run_graph: Callable[[ir.Graph, ir.Node, Scope, Sequence[Any], Any], list[Any]]
    keys: Keys
    checks: RangeChecks
    xp: ModuleType = jnp
    force_host: bool = False
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def opset(self) -> int:
        """Opset of the node's domain in the scope that holds the node."""
        return self.scope.opset(self.node.domain)

    @property
    def on_host(self) -> bool:
        return self.xp is np

    @property
    def where(self) -> str:
        """How messages name the node."""
        return locate(self.node, self.scope)

    def attr(self, name: str, default: Any = attributes.MISSING) -> Any:
        """Value of an attribute: the node's, else `default` where given, else the schema's default at this opset."""
        if name in self.overrides:
            return self.overrides[name]
        attribute = attributes.resolve(self.node, name, self.scope.bound)
        if attribute is not None:
            return attributes.value_of(attribute)
        if default is not attributes.MISSING:
            return default
        return attributes.schema_default(self.node.domain, self.node.op_type, self.opset, name)

    def has_attr(self, name: str) -> bool:
        return attributes.resolve(self.node, name, self.scope.bound) is not None

    def known(self, operand: Any) -> np.ndarray | None:
        """The value of an operand as numpy where it is known at compile time, else None."""
        return self.host_value(self._value_of(operand), operand)

    def run_body(self, body: ir.Graph, inputs: Sequence[Any] = (), iteration: Any = None) -> list[Any]:
        """The outputs of a body of this node for the given values of its inputs; `iteration`: its number, in a loop."""
        return self.run_graph(body, self.node, self.scope, inputs, iteration)

    def random_key(self) -> Any:
        """A key that no other evaluation in any call has."""
        return self.keys.next(self.scope.iterations)

    def expect_indices(
        self, indices: Any, shape: Sequence[int], axis: int = 0, of: int = 0, lowest: int | None = None
    ) -> None:
        """An index out of range is an error of the call. `shape` and `axis`: what is indexed, which is operand `of`.

        indices: an operand of the node, or what the rule made of one; from `lowest` on, by default -shape[axis].
        """
        value = self.node.inputs[of]
        name = repr(value.name) if value is not None else "its operand"
        axis = axis + len(shape) if axis < 0 else axis
        given = next((v for v, o in zip(self.node.inputs, self.operands) if o is indices), None)
        known = indices if given is None else self.host_value(given, indices)
        indices = indices if known is None else known
        self.checks.expect(self.node, self.where, indices, shape[axis], f"axis {axis} of {name}", lowest)

    def concrete(self, operand: Any) -> np.ndarray:
        """The value of an operand as numpy, known at compile time.

        A run-time input that it depends on is specialised: the trace is abandoned (NeedsValue) and repeated with that
        input's value as part of the executable's key.
        """
        if isinstance(operand, (np.ndarray, np.generic)):
            return np.asarray(operand)
        value = self._value_of(operand)
        known = self.host_value(value, operand)
        if known is not None:
            return known
        raise NeedsValue(value, self.node, self.scope)

    def ints(self, operand: Any) -> list[int]:
        """A concrete integer operand (scalar or 1-D) as a list, with jax's symbols for open dimensions."""
        array = self.concrete(operand).reshape(-1)
        return list(array) if is_open(array) else [int(i) for i in array]

    def int_param(self, name: str, operand: Any = None) -> list[int] | None:
        """A parameter that older opsets give as an attribute and newer ones as an input; None where absent."""
        if operand is not None:
            return self.ints(operand)
        value = self.attr(name)
        return None if value is None else [int(i) for i in np.atleast_1d(value)]

    def check_size(self, shape: Sequence[int]) -> None:
        """Called by rules that make arrays bigger than their operands, before they do."""
        if self.on_host and math.prod(shape) > HOST_ELEMENTS and not self.force_host:
            raise TraceInstead

    def wants(self, index: int) -> bool:
        """Is output `index` there and named?"""
        return index < len(self.node.outputs) and bool(self.node.outputs[index].name)

    def unsupported(self, why: str) -> UnsupportedOpError:
        """The error to raise for a form of the operator that the rule does not cover."""
        return UnsupportedOpError(f"{self.where}: {why} is not supported on xla devices")

    def _value_of(self, operand: Any) -> ir.Value:
        for value, candidate in zip(self.node.inputs, self.operands):
            if candidate is operand and value is not None:
                return value
        raise TypeError(f"{describe_node(self.node)}: ctx.concrete takes an operand of the node itself")
