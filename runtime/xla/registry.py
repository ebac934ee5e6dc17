"""The table of lowering rules: (domain, operator) → the rule for each opset range.

A rule is a free function ``rule(ctx, node, *operands) -> array | tuple`` (see `context.Context`). Where it may be
evaluated is part of its registration:

* ``"device"``: the rule is written with jnp/lax and is always traced.
* ``"host"``: the rule is written against ``ctx.xp``; with numpy there, it computes shape arithmetic at trace time.
* ``"control"``: it evaluates graphs of its own (branches), whose nodes are placed one by one.
* ``"shape"``: like ``"host"``, and it reads only the shapes of its operands, so it never has to be traced.
"""

from __future__ import annotations

import bisect
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import onnx_ir as ir

from .schema_functions import schema_function_ops

Place = Literal["device", "host", "control", "shape"]


def _always(node: ir.Node, operands: Sequence[Any]) -> bool:
    return True


class Rule(NamedTuple):
    """`takes(node, operands)`: whether the rule is for this form; others are lowered by the schema's function."""

    since: int
    function: Callable[..., Any]
    place: Place
    takes: Callable[[ir.Node, Sequence[Any]], bool] = _always


_RULES: dict[tuple[str, str], list[Rule]] = defaultdict(list)
_loaded = False


def register(
    *op_types: str,
    since: int = 1,
    domain: str = "",
    place: Place = "device",
    takes: Callable[[ir.Node, Sequence[Any]], bool] = _always,
) -> Callable[[Any], Any]:
    """Enter one rule for each of `op_types` from opset `since` on. Usable as a call or as a decorator."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for op_type in op_types:
            rules = _RULES[domain, op_type]
            if any(rule.since == since for rule in rules):
                raise ValueError(f"two rules for {domain or 'ai.onnx'}::{op_type} since {since}")
            bisect.insort(rules, Rule(since, function, place, takes), key=lambda rule: rule.since)
        return function

    return enter


def lookup(domain: str, op_type: str, opset: int) -> Rule | None:
    """The rule with the largest `since` that is at most `opset`, or None."""
    load_rules()
    rules = _RULES.get((domain, op_type), [])
    index = bisect.bisect_right(rules, opset, key=lambda rule: rule.since)
    return rules[index - 1] if index else None


def supported_ops() -> dict[tuple[str, str], tuple[int, ...]]:
    """(domain, operator) → the opset versions from which on it is lowered; domain "" is ai.onnx.

    Operators without a rule are there where the ONNX schema defines them by others that have one.
    """
    load_rules()
    versions = {key: tuple(rule.since for rule in rules) for key, rules in _RULES.items() if rules}
    for key, since in schema_function_ops().items():
        versions.setdefault(key, tuple(sorted(since)))
    return dict(sorted(versions.items()))


def load_rules() -> None:
    """Import every family file once; each fills the table when it is imported."""
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("pfvm.runtime.xla.ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    _loaded = True
