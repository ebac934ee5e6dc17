"""Watching rules at work: what was tried at a node, what was refused, what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from .provenance import Group


class Trace(Protocol):
    """Told of every step, in order; must not change the graph."""

    def started(self, pass_name: str, model: ir.Model) -> None:
        """A pass begins on this model."""

    def refused(self, rule: str, node: ir.Node) -> None:
        """A rule was tried at its root node and not applied; `rejected` told why, where the rule had a reason."""

    def rejected(self, rule: str, why: str, node: ir.Node | None) -> None:
        """A rule looked applicable at a node and was not applied."""

    def replaced(self, node: ir.Node, value: ir.Value) -> None:
        """Readers of the node are about to read this value instead."""

    def rewritten(self, rule: str, node: ir.Node | None, groups: Sequence[Group], erased: Sequence[ir.Node]) -> None:
        """One rewrite is done, at this root node: what it made of which nodes, and which nodes are gone."""


class NoTrace:
    """Nobody is watching."""

    def started(self, pass_name: str, model: ir.Model) -> None: ...
    def refused(self, rule: str, node: ir.Node) -> None: ...
    def rejected(self, rule: str, why: str, node: ir.Node | None) -> None: ...
    def replaced(self, node: ir.Node, value: ir.Value) -> None: ...
    def rewritten(
        self, rule: str, node: ir.Node | None, groups: Sequence[Group], erased: Sequence[ir.Node]
    ) -> None: ...
