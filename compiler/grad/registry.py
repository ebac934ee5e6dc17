"""The table of gradient rules: ai.onnx operator → how the gradient of its outputs becomes that of its inputs.

A rule is a free function ``rule(b, n, dy) -> gradient of the only input | sequence, one per input``, where `dy` is the
gradient of the first output; it writes nodes with the builder. None stands for "no gradient". A rule that does not
cover a form of its operator raises NotCovered, and the general way (`backward.NodeGradient`) is taken.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from pfvm.passes.view import View, constant

from .builder import Builder

Gradients = Sequence[ir.Value | None]
Rule = Callable[[Builder, "ForwardNode", ir.Value], "ir.Value | Gradients | None"]

_RULES: dict[str, Rule] = {}
_loaded = False


class NotCovered(Exception):
    """A form of an operator that its rule leaves to the general way."""


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardNode:
    """The node whose gradient is asked for. `wanted` are the inputs that need one."""

    node: ir.Node
    view: View
    wanted: frozenset[ir.Value]
    gradients: Mapping[ir.Value, ir.Value]

    def x(self, index: int = 0) -> ir.Value:
        """An input that is there."""
        value = self.view.at(index)
        assert value is not None
        return value

    @property
    def y(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def count(self) -> int:
        return len(self.node.inputs)

    def wants(self, index: int) -> bool:
        return self.view.at(index) in self.wanted

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, its schema's default, or `default`, also where this opset has no such attribute."""
        try:
            value = self.view.attr(name)
        except KeyError:
            return default
        return default if value is None else value

    def known(self, index: int) -> Any:
        """The constant at an input, as numpy; None where it is absent or not known."""
        return constant(self.view.at(index))


def gradient_of(*op_types: str) -> Callable[[Rule], Rule]:
    """Enter one rule for these operators."""

    def enter(rule: Rule) -> Rule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"two gradient rules for {op_type}")
            _RULES[op_type] = rule
        return rule

    return enter


def lookup(op_type: str) -> Rule | None:
    """The rule of an operator of ai.onnx, or None."""
    global _loaded
    if not _loaded:
        package = importlib.import_module("pfvm.compiler.grad.rules")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        _loaded = True
    return _RULES.get(op_type)
