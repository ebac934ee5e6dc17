"""Rules: small functions keyed by their root operator, applied by a worklist until none applies."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from .effects import Effect
from .rewriter import Rewriter
from .scopes import operator

Rule = Callable[[ir.Node, Rewriter], bool]
MANY_READERS = 64


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Mark a function as a rule that is tried at nodes of these operators.

    op_types: names of ai.onnx, and "com.microsoft::Gelu" for another domain.

    The function takes the node and the Rewriter and returns True when it changed the graph. `rules_in` finds it; of the
    rules of one operator the one that stands first in the file is tried first.
    """

    def mark(function: Rule) -> Rule:
        function.op_types = op_types  # type: ignore[attr-defined]
        return function

    return mark


def rules_in(namespace: Mapping[str, Any]) -> dict[str, list[Rule]]:
    """The rules that a file (its `globals()`) defines itself, by operator."""
    found: dict[str, list[Rule]] = {}
    for each in namespace.values():
        if getattr(each, "__module__", None) == namespace["__name__"]:
            for op_type in getattr(each, "op_types", ()):
                found.setdefault(op_type, []).append(each)
    return found


def apply_rules(rw: Rewriter, rules: Mapping[str, Sequence[Rule]]) -> None:
    """Apply rules, keyed by the operator of their root node, until none applies; only neighbours are visited again.

    A rule returns True when it changed the graph, and is then counted under its name.
    """
    queue = collections.deque(rw.nodes_of(rules))
    queued = set(queue)

    def push(node: ir.Node) -> None:
        if operator(node) in rules and node not in queued:
            queued.add(node)
            queue.append(node)

    def push_neighbours(node: ir.Node) -> None:
        push(node)
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None:
                push(producer)
        for out in node.outputs:
            uses = out.uses()
            # A value with very many readers would make revisiting quadratic; the next round sees what is missed here.
            if len(uses) <= MANY_READERS:
                for use in uses:
                    push(use.node)

    stop = rw.listen(push_neighbours)
    try:
        while queue:
            node = queue.popleft()
            queued.discard(node)
            # Rules of ai.onnx operators do not speak of a local function that shares the name.
            if node.graph is None or not (node.domain or rw.is_standard(node)):
                continue
            rw.node = node
            for rule in rules[operator(node)]:
                if not rule(node, rw):
                    rw.trace.refused(rule.__name__, node)
                else:
                    rw.matched(rule.__name__)
                    if node.graph is not None:
                        push_neighbours(node)
                    break
    finally:
        rw.node = None
        stop()


def forward(node: ir.Node, rw: Rewriter, value: ir.Value | None, rule: str) -> bool:
    """Let readers of the node's only used output read `value`; a graph output that cannot be it becomes a copy.

    Returns whether that was done, through `rw`. If not, the reason is counted under the name `rule`; None as the value
    stands for "nothing found", which is no reason.
    """
    if value is None:
        return False
    if set(rw.view(node).used_outputs()) - {0}:
        return rw.reject(rule, "another output of it is read")
    if rw.effect(node) is not Effect.PURE:
        return rw.reject(rule, "it draws numbers, is in training mode, or nobody described it")
    if not rw.can_replace(node.outputs[0], value):
        if node.op_type == "Identity" or not isinstance(value.type, ir.TensorType):
            return rw.reject(rule, "a graph output keeps its own value")
        value = rw.op("Identity", value, at=node).outputs[0]
    rw.replace(node, value)
    return True
