"""Pairs the nodes of two graphs: those that compute the same, those that are used the same way, then neighbours."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx_ir as ir
from pfvm.passes.provenance import FROM, names

from .constants import ConstantPairs
from .keys import Keys, inputs_of


class Matching:
    """Pairs of nodes and values of two models. Names only choose among nodes that are equal otherwise, at first.

    `node[old]` is the new node; `value[old]` the new value, constants left out.
    """

    def __init__(self, old: Keys, new: Keys, constants: ConstantPairs) -> None:
        self._old, self._new, self._constants = old, new, constants
        self.node: dict[ir.Node, ir.Node] = {}
        self.value: dict[ir.Value, ir.Value] = {}
        self._taken: set[ir.Node] = set()

    def graphs(self, old: Sequence[ir.Node], new: Sequence[ir.Node]) -> None:
        """Pair the nodes of two graphs whose inputs, and whose outer values, are paired."""
        for mine, theirs in (
            (lambda n: (self._old.up[n], self._old.down[n], self._mapped(n)), self._exact),
            (lambda n: (self._old.up[n], self._mapped(n)), lambda n: (self._new.up[n], self._own(n))),
            (lambda n: self._old.up[n], lambda n: self._new.up[n]),
        ):
            self._by_key(old, new, mine, theirs)
        below = [node for node in reversed(old) if node not in self.node]
        self._by_key(below, reversed(new), self._used_old, self._used_new)
        self._by_key(below, reversed(new), lambda n: self._old.down[n], lambda n: self._new.down[n])
        self._by_key(old, new, _named, _named)
        self._by_origin(old, new)
        self._by_neighbours(old)

    def is_taken(self, node: ir.Node) -> bool:
        """Whether a node of the new model is paired."""
        return node in self._taken

    def _pair(self, old: ir.Node, new: ir.Node) -> None:
        self.node[old] = new
        self._taken.add(new)
        self.value.update(zip(old.outputs, new.outputs))

    def _by_key(
        self,
        old: Iterable[ir.Node],
        new: Iterable[ir.Node],
        mine: Callable[[ir.Node], Any],
        theirs: Callable[[ir.Node], Any],
    ) -> None:
        """Pair open nodes of equal keys, those of equal names first; the keys of `old` are asked for in its order."""
        by_key: dict[Any, collections.deque[ir.Node]] = collections.defaultdict(collections.deque)
        by_name: dict[Any, collections.deque[ir.Node]] = collections.defaultdict(collections.deque)
        for node in new:
            if node not in self._taken:
                key = theirs(node)
                by_key[key].append(node)
                by_name[key, _name(node)].append(node)
        if not by_key:
            return
        for node in old:
            if node in self.node:
                continue
            key = mine(node)
            if key is None:
                continue
            for waiting in (by_name.get((key, _name(node))), by_key.get(key)):
                while waiting and waiting[0] in self._taken:
                    waiting.popleft()
                if waiting:
                    self._pair(node, waiting.popleft())
                    break

    def _by_origin(self, old: Sequence[ir.Node], new: Sequence[ir.Node]) -> None:
        """A node that a pass made, with a node of the same operator that it was made of."""
        named = {_named(node): node for node in old if node not in self.node}
        for node in new if named else ():
            if node in self._taken or FROM not in node.metadata_props:
                continue
            for name in names(node.metadata_props[FROM]):
                source = named.get((node.op_identifier(), name))
                if source is not None and source not in self.node:
                    self._pair(source, node)
                    break

    # ---- keys that speak of nodes that are paired already

    def _mapped(self, node: ir.Node) -> tuple[object, ...]:
        """What a node of the old model reads, as values of the new one."""
        return tuple(
            None if v is None else self._constants.token.get(v) or id(self.value.get(v)) for v in inputs_of(node)
        )

    def _own(self, node: ir.Node) -> tuple[object, ...]:
        return tuple(None if v is None else self._constants.token.get(v) or id(v) for v in inputs_of(node))

    def _exact(self, node: ir.Node) -> tuple[object, ...]:
        return self._new.up[node], self._new.down[node], self._own(node)

    def _used_old(self, node: ir.Node) -> tuple[object, ...] | None:
        readers = [(id(self.node[use.node]), use.idx) for out in node.outputs for use in out.uses()
                   if use.node in self.node]  # fmt: skip
        return (self._old.down[node], *sorted(readers))

    def _used_new(self, node: ir.Node) -> tuple[object, ...]:
        readers = [(id(use.node), use.idx) for out in node.outputs for use in out.uses() if use.node in self._taken]
        return (self._new.down[node], *sorted(readers))

    # ---- neighbours

    def _by_neighbours(self, old: Sequence[ir.Node]) -> None:
        """From pairs to what they read and what reads them: the same operator at the same place, if only one."""
        queue = collections.deque(node for node in old if node in self.node)
        while queue:
            node = queue.popleft()
            other = self.node[node]
            for mine, theirs in [*self._producers(node, other), *self._readers(node, other)]:
                if mine not in self.node and theirs not in self._taken:
                    self._pair(mine, theirs)
                    queue.append(mine)

    @staticmethod
    def _producers(node: ir.Node, other: ir.Node) -> list[tuple[ir.Node, ir.Node]]:
        found = []
        for a, b in zip(node.inputs, other.inputs):
            mine, theirs = (None if value is None else value.producer() for value in (a, b))
            if mine is not None and theirs is not None and a is not None and b is not None:
                same = mine.op_identifier() == theirs.op_identifier() and a.index() == b.index()
                if same and mine.op_type != "Constant":
                    found.append((mine, theirs))
        return found

    def _readers(self, node: ir.Node, other: ir.Node) -> list[tuple[ir.Node, ir.Node]]:
        found = []
        for a, b in zip(node.outputs, other.outputs):
            mine = _only({(u.node.op_identifier(), u.idx): u.node for u in a.uses()}, a, self.node)
            theirs = _only({(u.node.op_identifier(), u.idx): u.node for u in b.uses()}, b, self._taken)
            found += [(reader, theirs[place]) for place, reader in mine.items() if place in theirs]
        return found


def _only(
    readers: dict[tuple[Any, int], ir.Node], value: ir.Value, paired: collections.abc.Container[ir.Node]
) -> dict[tuple[Any, int], ir.Node]:
    """The open readers that are the only ones of their operator at their place, in the value's own graph."""
    counts = collections.Counter((use.node.op_identifier(), use.idx) for use in value.uses() if use.node not in paired)
    return {
        place: node
        for place, node in readers.items()
        if counts[place] == 1 and node not in paired and node.graph is value.graph
    }


def _name(node: ir.Node) -> str | None:
    """Of the node, else of its first output."""
    return node.name or (node.outputs[0].name if node.outputs else None)


def _named(node: ir.Node) -> object:
    return (node.op_identifier(), _name(node))
