"""Which rule made a node, and which nodes of the Exported model it stands for: `pfvm.rule` and `pfvm.from`.

Both are metadata of the node: `fuse-matmul-bias/matmul_bias`, and a JSON list of names, `["MatMul_3","Add_4"]`. A node
without a name is named by its first output. Of more than LONGEST names the first are kept, and null ends the list.

Passes need not care: the Rewriter notes what one rewrite makes and erases, and once the rewrite is counted the new
nodes are labelled. A new node stands for the node at which it was inserted, and for the erased nodes between that one
and what the new node reads: of `Gemm(x, w, b)` in the place of an Add, the Add and the MatMul. What stands for others
already hands on their names, so that the names are always those of the Exported model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from .effects import roots

RULE, FROM = "pfvm.rule", "pfvm.from"
SOURCE, MODULE = "pfvm.source", "pfvm.module"
"""Metadata of a captured node: its Python line, and the module that it is in."""
LONGEST = 32
_STEPS = 256
"""Erased nodes that are looked at for one group of new nodes, so that labels take linear time."""

Group = tuple[list[ir.Node], list[ir.Node]]
"""New nodes, and the nodes that they stand for."""


class Provenance:
    """Notes of one rewrite after the other; writes nothing unless a pass runs."""

    def __init__(self) -> None:
        self.is_written = True
        self.pass_name = ""
        self._made: list[tuple[ir.Node, ir.Node]] = []
        self._sources: dict[ir.Node, tuple[ir.Node, ...]] = {}
        self._erased: dict[ir.Node, tuple[ir.Value | None, ...]] = {}
        self._first_names: dict[ir.Value, str] = {}

    # ---- notes

    def made(self, node: ir.Node, at: ir.Node) -> None:
        """A new node, inserted at another."""
        self._made.append((node, at))

    def copied(self, node: ir.Node, *sources: ir.Node) -> None:
        """A new node that stands for these nodes, and for no others, wherever it was inserted."""
        self._sources[node] = sources

    def erased(self, node: ir.Node) -> None:
        """A node that goes, while it still has its inputs."""
        self._erased[node] = tuple(node.inputs)

    def renamed(self, value: ir.Value) -> None:
        """A value that gets another name: nodes without a name of their own are known by the first one."""
        if value.name:
            self._first_names.setdefault(value, value.name)

    @property
    def is_pending(self) -> bool:
        """Whether nodes were made or erased since the last rewrite ended."""
        return bool(self._made or self._erased)

    # ---- labels

    def settle(self, rule: str) -> tuple[list[Group], list[ir.Node]]:
        """End a rewrite: label what it made. Returns what was made of what, and the erased nodes."""
        groups: list[Group] = []
        if self.pass_name and (self._made or self._sources):
            groups = self._groups()
            label = f"{self.pass_name}/{rule}" if rule else self.pass_name
            for nodes, sources in groups if self.is_written else ():
                text = _text(name for source in sources for name in self._names(source))
                for node in nodes:
                    node.metadata_props[RULE], node.metadata_props[FROM] = label, text
        erased = list(self._erased)
        self._made.clear()
        self._sources.clear()
        self._erased.clear()
        return groups, erased

    def _groups(self) -> list[Group]:
        by_place: dict[ir.Node, list[ir.Node]] = {}
        groups: list[Group] = []
        for node, at in self._made:
            if node not in self._sources:
                by_place.setdefault(at, []).append(node)
        for at, nodes in by_place.items():
            groups.append((nodes, self._between(at, {value for node in nodes for value in node.inputs})))
        return groups + [([node], list(sources)) for node, sources in self._sources.items()]

    def _between(self, at: ir.Node, reads: set[ir.Value | None]) -> list[ir.Node]:
        """The erased nodes between `at` and what the new nodes read, producers first; `at` comes last."""
        if len(self._erased) <= 1:
            return [at]
        reaches: dict[ir.Node, bool] = {}
        found: list[ir.Node] = []
        self._visit(at, reads, reaches, found)
        if not reaches[at]:
            found.append(at)
        return found

    def _visit(
        self, node: ir.Node, reads: set[ir.Value | None], reaches: dict[ir.Node, bool], found: list[ir.Node]
    ) -> None:
        reaches[node] = False
        reached = False
        for value in self._erased.get(node, node.inputs):
            if value is None:
                continue
            producer = value.producer()
            if producer in self._erased and producer not in reaches and len(reaches) < _STEPS:
                self._visit(producer, reads, reaches, found)
            reached |= value in reads or (producer is not None and reaches.get(producer, False))
        reaches[node] = reached
        if reached:
            found.append(node)

    def _names(self, node: ir.Node) -> list[str | None]:
        text = node.metadata_props.get(FROM)
        if text is not None:
            return _parsed(text)
        return [node.name or self.first_name(node)]

    def first_name(self, node: ir.Node) -> str:
        """Of its first output; the operator where that has none either."""
        out = node.outputs[0] if node.outputs else None
        return (out and self._first_names.get(out, out.name)) or node.op_type


def names(text: str | None) -> list[str]:
    """The names in a node's `pfvm.from`: those of the nodes of the Exported model that it stands for.

    None for a node that no pass made.
    """
    return [name for name in _parsed(text or "[]") if name is not None]


def label(node: ir.Node, known: Iterable[str]) -> None:
    """Say of a node that it stands for these."""
    node.metadata_props[FROM] = _text(known)


def location(node: ir.Node) -> dict[str, str]:
    """The metadata with a node's Python line and module, as far as it has them."""
    return {key: text for key, text in node.metadata_props.items() if key in (SOURCE, MODULE)}


def strip(model: ir.Model) -> None:
    """Remove `pfvm.rule` and `pfvm.from` from every node; other metadata stays."""
    for root in roots(model):
        for node in root.all_nodes():
            for key in (RULE, FROM):
                node.metadata_props.pop(key, None)


def _parsed(text: str) -> list[str | None]:
    """The names in `pfvm.from`; another program's text under this key is one name."""
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    return [None if name is None else str(name) for name in found] if isinstance(found, list) else [str(found)]


def _text(parts: Iterable[str | None]) -> str:
    listed: Sequence[str | None] = list(dict.fromkeys(parts))
    known = [name for name in listed if name is not None]
    whole = len(known) <= LONGEST and len(known) == len(listed)
    return json.dumps(known if whole else [*known[:LONGEST], None], ensure_ascii=False, separators=(",", ":"))
