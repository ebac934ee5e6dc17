"""Following nodes through a compilation: which rules were tried at them, why those failed, what became of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir
from pfvm.errors import describe_node
from pfvm.passes.effects import bodies
from pfvm.passes.provenance import Group

_READERS = 64
"""Readers of a followed node at which rejections are noted as well."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What one rewrite did to a followed node; `rule` is `pass/rule`."""

    round: int
    rule: str
    what: str


class Follower:
    """A Trace (see pfvm.passes.trace) of some nodes and of all that is made of them.

    `find` gives the nodes in the model that is compiled. steps: what happened to them, in order. reasons: (rule, node)
    → why it was refused there. unmatched: pass → rules that were tried and did not match, without a reason.
    """

    def __init__(self, find: Callable[[ir.Model], Sequence[ir.Node]]) -> None:
        self._find = find
        self.model: ir.Model
        self.nodes: dict[ir.Node, None] = {}
        self.steps: list[Step] = []
        self.reasons: dict[tuple[str, str], dict[str, None]] = {}
        self.unmatched: dict[str, dict[str, None]] = {}
        self._round, self._first, self._pass = 0, "", ""
        self._replaced: dict[ir.Node, str] = {}
        self._refusals: list[str] = []

    def started(self, pass_name: str, model: ir.Model) -> None:
        if not self._round:
            self._first, self.model = pass_name, model
            self.nodes = dict.fromkeys(self._find(model))
        self._round += pass_name == self._first
        self._pass = pass_name
        self._replaced.clear()
        self._refusals.clear()

    def refused(self, rule: str, node: ir.Node) -> None:
        if node in self.nodes and not self._refusals:
            self.unmatched.setdefault(self._pass, {})[rule] = None
        self._refusals.clear()

    def rejected(self, rule: str, why: str, node: ir.Node | None) -> None:
        if node is None:
            return
        self._refusals.append(rule)
        if node in self.nodes or self._reads_one(node):
            self.reasons.setdefault((self._named(rule), describe_node(node)), {})[why] = None

    def never_matched(self) -> dict[str, list[str]]:
        """`unmatched`, without the rules that did match in another round."""
        matched = {step.rule for step in self.steps}
        left = {
            name: [rule for rule in rules if (rule if rule == name else f"{name}/{rule}") not in matched]
            for name, rules in self.unmatched.items()
        }
        return {name: rules for name, rules in left.items() if rules}

    def _reads_one(self, node: ir.Node) -> bool:
        """Is it a reader of a followed node? The roots of patterns that a node is part of are such."""
        producers = (value.producer() for value in node.inputs if value is not None and len(value.uses()) <= _READERS)
        return any(producer in self.nodes for producer in producers)

    def replaced(self, node: ir.Node, value: ir.Value) -> None:
        if node in self.nodes:
            self._replaced[node] = _value(value)

    def rewritten(self, rule: str, node: ir.Node | None, groups: Sequence[Group], erased: Sequence[ir.Node]) -> None:
        gone = [each for each in erased if each in self.nodes]
        became = set()
        for made, sources in groups:
            mine = [source for source in sources if source in self.nodes]
            if not mine:
                continue
            became.update(mine)
            others = [describe_node(source) for source in sources if source not in self.nodes]
            with_them = f", with {', '.join(others)}" if others else ""
            self._note(rule, f"{_listed(mine)}{with_them} → {_listed(made)}")
            self.nodes.update(dict.fromkeys(made))
        for each in gone:
            if each not in became:
                instead = self._replaced.get(each)
                why = f"readers read {instead} instead" if instead else "dropped, for nobody reads it any more"
                self._note(rule, f"{describe_node(each)}: {why}")
        for outer in erased:
            for inner in (each for body in bodies(outer) for each in body.all_nodes()):
                if inner in self.nodes and inner not in became:
                    self._note(
                        rule, f"{describe_node(inner)}: dropped with {describe_node(outer)}, in whose body it was"
                    )
        if node is not None and node in self.nodes and not groups and node not in gone:
            self._note(rule, f"{describe_node(node)}: changed in place, now {signature(node)}")
        self._replaced.clear()

    def _note(self, rule: str, what: str) -> None:
        self.steps.append(Step(self._round, self._named(rule), what))

    def _named(self, rule: str) -> str:
        return self._pass if rule in ("", self._pass) else f"{self._pass}/{rule}"


def signature(node: ir.Node) -> str:
    """`(x, w) → (y)`."""
    inputs, outputs = (
        ", ".join("" if value is None else str(value.name) for value in values)
        for values in (node.inputs, node.outputs)
    )
    return f"({inputs}) → ({outputs})"


def _listed(nodes: Sequence[ir.Node]) -> str:
    return ", ".join(describe_node(node) for node in nodes)


def _value(value: ir.Value) -> str:
    producer = value.producer()
    if producer is not None:
        return f"{value.name!r} of {describe_node(producer)}"
    return f"the constant {value.name!r}" if value.is_initializer() else repr(value.name)


class Followers:
    """Several followers of one compilation."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._followers = followers

    def started(self, pass_name: str, model: ir.Model) -> None:
        for each in self._followers:
            each.started(pass_name, model)

    def refused(self, rule: str, node: ir.Node) -> None:
        for each in self._followers:
            each.refused(rule, node)

    def rejected(self, rule: str, why: str, node: ir.Node | None) -> None:
        for each in self._followers:
            each.rejected(rule, why, node)

    def replaced(self, node: ir.Node, value: ir.Value) -> None:
        for each in self._followers:
            each.replaced(node, value)

    def rewritten(self, rule: str, node: ir.Node | None, groups: Sequence[Group], erased: Sequence[ir.Node]) -> None:
        for each in self._followers:
            each.rewritten(rule, node, groups, erased)
