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

    def reject(self, rule: str, why: str, node: ir.Node | None = None) -> bool:
        """Count why a rule that looked applicable was not applied; returns False, for `return rw.reject(…)`.

        `node` is that at which it was tried; it need not be given by rules of `apply_rules`.
        """
        self.rejections[rule, why] += 1
        self.trace.rejected(rule, why, node or self.node)
        return False
