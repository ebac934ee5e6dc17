"""move-transposes: whole regions change layout where fewer Transposes are left."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .eliminate_identity import transpose_in_order
from .layout_agnostic import Perm, Turn, turn_of
from .merge_reshapes import permutation, transpose_twice
from .rewriter import Rewriter, inherit
from .rules import apply_rules
from .view import constant_tensor

_MANY_PERMS = 4
"""Layouts tried for one region; a region between convolutions knows one."""
_SYMBOLIC = 1000
"""What a symbolic dim counts when sizes are compared."""


@dataclasses.dataclass(frozen=True)
class MoveTransposes:
    """Turn elementwise operators, reductions, Concat, Split, Pad, Slice, Softmax … to the layout around them.

    before:  x ─ Conv ─ Transpose(0,2,3,1) ─ Mul(·, k[C]) ─ Relu ─ Concat(axis=3) ─ Transpose(0,3,1,2) ─ Conv
             z ─ Conv ─ Transpose(0,2,3,1) ─────────────────────┘
    after:   x ─ Conv ─ Mul(·, k[C,1,1]) ─ Relu ─ Concat(axis=1) ─ Conv
             z ─ Conv ──────────────────────────┘

    A region is what such operators of one rank reach of each other. It is turned where that leaves fewer Transposes,
    or as many on fewer elements; each step lowers that pair, so it ends. The same numbers are computed, elementwise
    in another order; a reduction adds the same terms up in another order. Constants are turned at compile time.
    """

    name: ClassVar[str] = "move-transposes"

    def run(self, rw: Rewriter) -> None:
        if not rw.nodes_of(("Transpose",)):
            return
        stay: set[ir.Node] = set()
        for graph in list(rw.scopes()):
            for region in _regions(graph, rw):
                if not _improve(region, rw):
                    stay.update(region)
        apply_rules(rw, {"Transpose": [transpose_in_order, transpose_twice]})
        for node in rw.nodes_of(("Transpose",)):
            _explain(node, stay, rw)


def _regions(graph: ir.Graph, rw: Rewriter) -> Iterable[dict[ir.Node, Turn]]:
    """The connected sets of operators that work in any layout."""
    turns: dict[ir.Node, Turn] = {}
    for node in graph:
        turn = turn_of(node, rw) if node.op_type != "Transpose" else None
        if turn is not None:
            turns[node] = turn
    parent = {node: node for node in turns}

    def find(node: ir.Node) -> ir.Node:
        while parent[node] is not node:
            parent[node] = node = parent[parent[node]]
        return node

    for node, turn in turns.items():
        for value in turn.operands(node):
            producer = value.producer()
            if producer in turns and turns[producer].rank == turn.rank and turns[producer].turns_output:
                parent[find(node)] = find(producer)
    found: dict[ir.Node, dict[ir.Node, Turn]] = collections.defaultdict(dict)
    for node, turn in turns.items():
        found[find(node)][node] = turn
    return list(found.values())


def compose(first: Perm, second: Perm) -> Perm:
    """The perm of Transpose(Transpose(x, first), second)."""
    return tuple(first[i] for i in second)


def inverse(perm: Perm) -> Perm:
    """The perm that undoes it."""
    return tuple(int(i) for i in np.argsort(perm))


def _base(value: ir.Value, rw: Rewriter) -> tuple[ir.Value, Perm | None]:
    """What the value is a Transpose of, through chains of them, and the perm; itself and None when it is not one."""
    found: Perm | None = None
    while (node := rw.producer(value, "Transpose")) is not None and node.inputs[0] is not None:
        perm = permutation(node, rw)
        if perm is None:
            break
        value, found = node.inputs[0], tuple(perm) if found is None else compose(tuple(perm), found)
    return value, found


def _candidates(region: dict[ir.Node, Turn], rw: Rewriter) -> list[Perm]:
    """Perms that Transposes into the region have, and those that Transposes out of it undo."""
    found: collections.Counter[Perm] = collections.Counter()
    for node, turn in region.items():
        for value in turn.operands(node):
            perm = _base(value, rw)[1]
            if perm is not None and len(perm) == turn.rank:
                found[perm] += 1
        for out in node.outputs if turn.turns_output else ():
            for use in out.uses():
                perm = _base(use.node.outputs[0], rw)[1] if use.node.op_type == "Transpose" else None
                if perm is not None and len(perm) == turn.rank:
                    found[inverse(perm)] += 1
    identity = [perm for perm in found if perm == tuple(range(len(perm)))]
    for perm in identity:
        del found[perm]
    return [perm for perm, _ in found.most_common(_MANY_PERMS)]


def _improve(region: dict[ir.Node, Turn], rw: Rewriter) -> bool:
    for perm in _candidates(region, rw):
        problem = _Problem(region, perm, rw)
        turned = problem.solve()
        if turned:
            _turn(turned, perm, rw)
            rw.matched("turned_region")
            return True
    return False


def _explain(node: ir.Node, stay: set[ir.Node], rw: Rewriter) -> None:
    """Say why a Transpose is left."""
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    readers = [use.node for use in node.outputs[0].uses()][:_MANY_PERMS]
    beside = [each for each in (source, *readers) if each in stay and each is not None]
    if beside:
        rw.reject("turned_region", "no fewer Transposes would be left, nor any of fewer elements", node, *beside)
    else:
        before = "an input" if source is None else source.op_type
        behind = " or ".join(sorted({each.op_type for each in readers})) or "an output"
        rw.reject("turned_region", f"neither {before} before it nor {behind} behind it works in any layout", node)


Cost = tuple[int, int]


class _Problem:
    """Which nodes of a region to turn by `perm`: each value costs the distinct Transposes of it that are read."""

    def __init__(self, region: dict[ir.Node, Turn], perm: Perm, rw: Rewriter) -> None:
        self.region = {node: turn for node, turn in region.items() if turn.allows(perm)}
        self.perm, self.back, self.rw = perm, inverse(perm), rw
        self.bases: dict[ir.Node, set[ir.Value]] = {}
        for node, turn in self.region.items():
            touched = {_base(value, rw)[0] for value in turn.operands(node) if constant_tensor(value) is None}
            self.bases[node] = touched | (set(node.outputs) if turn.turns_output else set())

    def solve(self) -> dict[ir.Node, Turn]:
        """The nodes to turn, or none when that is no better than to leave all as they are."""
        every = {base: None for node in self.region for base in self.bases[node]}
        turned: set[ir.Node] = set()
        before = _total(self.cost(base, turned) for base in every)
        turned = set(self.region)
        queue = collections.deque([*self.region, *reversed(list(self.region))])
        budget = 8 * len(queue)
        while queue and budget:  # leave out what is better left out
            budget -= 1
            node = queue.popleft()
            if node not in turned:
                continue
            with_it = _total(self.cost(base, turned) for base in self.bases[node])
            turned.discard(node)
            without = _total(self.cost(base, turned) for base in self.bases[node])
            if without > with_it:
                turned.add(node)
            else:
                for base in self.bases[node]:
                    queue.extend(use.node for use in base.uses() if use.node in turned)
                    producer = base.producer()
                    if producer in turned:
                        queue.append(producer)
        after = _total(self.cost(base, turned) for base in every)
        return {node: turn for node, turn in self.region.items() if node in turned} if after < before else {}

    def cost(self, base: ir.Value, turned: set[ir.Node]) -> Cost:
        """Distinct Transposes of `base` (or of its turned form) that are read, and the elements they move."""
        perms: set[Perm] = set()
        rank = len(self.perm)
        identity = tuple(range(rank))
        self._needed(base, identity, turned, perms, 0)
        producer = base.producer()
        if producer in turned and self.region[producer].turns_output:
            perms = {compose(self.perm, perm) for perm in perms}
        count = len(perms - {identity})
        return count, count * _elements(base)

    def _needed(self, value: ir.Value, perm: Perm, turned: set[ir.Node], perms: set[Perm], depth: int) -> None:
        """Add the forms of the base that readers of `value`, which is the base under `perm`, want."""
        if value.is_graph_output():
            perms.add(perm)
        for use in value.uses():
            node = use.node
            if node in turned and use.idx in self.region[node].reads:
                perms.add(compose(perm, self.back))
                continue
            own = permutation(node, self.rw) if depth < 4 and self.rw.producer(node.outputs[0], "Transpose") else None
            if own is None:
                perms.add(perm)
            else:
                self._needed(node.outputs[0], compose(perm, tuple(own)), turned, perms, depth + 1)


def _total(costs: Iterable[Cost]) -> Cost:
    listed = list(costs)
    return sum(c[0] for c in listed), sum(c[1] for c in listed)


def _elements(value: ir.Value) -> int:
    size = 1
    for dim in value.shape or ():
        size *= dim if isinstance(dim, int) else _SYMBOLIC
    return size


def _turn(region: dict[ir.Node, Turn], perm: Perm, rw: Rewriter) -> None:
    """Compute every node of the region in the other layout; readers outside get a Transpose, dead where none is."""
    turned: dict[ir.Value, ir.Value] = {}
    back = inverse(perm)
    for node, turn in region.items():
        operands = [
            _turned(value, perm, back, turned, node, rw) if value is not None and i in turn.reads else value
            for i, value in enumerate(node.inputs)
        ]
        new = turn.build(node, operands, perm, rw)
        inherit(new, node)
        if not turn.turns_output:
            rw.replace(node, *new.outputs)
            continue
        used = rw.view(node).used_outputs()
        results: list[ir.Value | None] = [None] * len(new.outputs)
        for i in used:
            result = results[i] = rw.op("Transpose", new.outputs[i], at=node, perm=list(perm)).outputs[0]
            turned[result] = new.outputs[i]
        rw.replace(node, *results)


def _turned(
    value: ir.Value, perm: Perm, back: Perm, turned: dict[ir.Value, ir.Value], at: ir.Node, rw: Rewriter
) -> ir.Value:
    if value in turned:
        return turned[value]
    tensor = constant_tensor(value)
    if tensor is not None:
        array = tensor.numpy()
        array = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
        turned_array = np.ascontiguousarray(np.transpose(array, back))
        while turned_array.ndim > 1 and turned_array.shape[0] == 1 and tensor.shape.rank() < len(perm):
            turned_array = turned_array[0]
        return rw.constant(ir.tensor(turned_array, dtype=tensor.dtype), value.name or "constant", at)
    base, own = _base(value, rw)
    if own is not None and compose(own, back) == tuple(range(len(perm))):
        return base
    return rw.op("Transpose", value, at=at, perm=list(back)).outputs[0]
