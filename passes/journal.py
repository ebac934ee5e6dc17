"""What a pass did: rewrites counted, rejections with their reasons, labels of new nodes."""

from __future__ import annotations

import collections

import onnx_ir as ir

from .provenance import Provenance
from .trace import NoTrace, Trace


class Journal:
    """The Rewriter's statistics; they are those of one pass at a time."""

    def __init__(self) -> None:
        self.matches: collections.Counter[str] = collections.Counter()
        self.rejections: collections.Counter[tuple[str, str]] = collections.Counter()
        self.provenance = Provenance()
        self.trace: Trace = NoTrace()
        self.node: ir.Node | None = None
        """The node at which `apply_rules` is trying rules."""

    def start_pass(self, name: str = "") -> None:
        """Forget what was counted. Without a name, new nodes get no labels."""
        self.matches, self.rejections = collections.Counter(), collections.Counter()
        self.provenance.pass_name = name

    def end_pass(self) -> None:
        """Label what the pass made without counting it."""
        self._settle("")

    def matched(self, what: str) -> None:
        """Count one applied rewrite, once it is done: new nodes are labelled as made by it."""
        self.matches[what] += 1
        self._settle(what)

    def _settle(self, rule: str) -> None:
        groups, erased = self.provenance.settle(rule)
        self.trace.rewritten(rule, self.node, groups, erased)

    def reject(self, rule: str, why: str, *nodes: ir.Node) -> bool:
        """Count why a rule that looked applicable was not applied; returns False, for `return rw.reject(…)`.

        `nodes` are those at which it was tried; rules that `apply_rules` tries need not say so.
        """
        self.rejections[rule, why] += 1
        for node in nodes or (self.node,):
            self.trace.rejected(rule, why, node)
        return False
