"""In-place updates of whole tensors become new values without tracing again: `w.add_(g)` is `add(w, g)` from there on.

Handles onto the same memory with the same shape and strides are one value. Where another view of updated memory is read
afterwards (`x[0] = 1`), the graph is left to functionalization.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .aten import TABLE
from .decompose import DECOMPOSITIONS
from .emit import sizes

aten = torch.ops.aten
Node = torch.fx.Node

# Memory, and which elements of it: two nodes with the same handle are the same numbers at any time.
_Handle = tuple[Any, ...]


@dataclass(frozen=True)
class _Update:
    """An in-place op: the handle that it writes, its out-of-place op, and that op's own graph where it has no rule.

    The graph's placeholders are `sources`, in order.
    """

    handle: _Handle
    op: Any
    body: torch.fx.Graph | None
    sources: tuple[Node, ...]


class NotWhole(Exception):
    """An update that is seen through another view, or has no plain out-of-place form."""


def is_mutation(node: Node) -> bool:
    """Whether a node writes to an argument."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def without_updates(graph: torch.fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Node]) -> dict[Node, Node]:
    """Make the graph free of in-place ops. Returns the new value of each placeholder that they wrote to.

    Raises NotWhole, and has changed nothing then; also where one of `inputs` is written to.
    """
    updates = _Plan(graph.graph, mode, inputs).updates
    now: dict[_Handle, Node] = {}
    written = {update.handle[0] for update in updates.values()}

    def current(node: Node) -> Node:
        handle = _handle(node)
        return node if handle is None else now.get(handle, node)

    for node in list(graph.graph.nodes):
        if any(not written.isdisjoint(_memories(n)) for n in node.all_input_nodes):
            node.args = torch.fx.node.map_arg(node.args, current)
            node.kwargs = torch.fx.node.map_arg(node.kwargs, current)
        if node in updates:
            made = _replacement(graph.graph, node, updates[node], [current(n) for n in updates[node].sources])
            now[updates[node].handle] = made
    placeholders = {n: current(n) for n in graph.graph.find_nodes(op="placeholder")}
    for node in reversed(list(updates)):
        graph.graph.erase_node(node)
    return {n: value for n, value in placeholders.items() if value is not n}


class _Plan:
    """The updates of a graph in order. Raises NotWhole where a stale view is read."""

    def __init__(self, graph: torch.fx.Graph, mode: FakeTensorMode, inputs: Sequence[Node]) -> None:
        self.updates: dict[Node, _Update] = {}
        self._mode = mode
        self._bodies: dict[Any, torch.fx.Graph] = {}
        self._writes: dict[Any, int] = {}  # memory → how often it was written to until here
        self._seen: dict[Node, dict[Any, int]] = {}  # node → memory → the number of writes that its value holds
        self._nodes: dict[_Handle, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            if is_mutation(node):
                target = node.args[0] if node.args else None
                for memory in _memories(target) if isinstance(target, Node) else ():
                    self._writes[memory] = 0
        if any(memory in self._writes for node in inputs for memory in _memories(node)):
            raise NotWhole
        for node in graph.nodes:
            self._read(node)
            if is_mutation(node):
                self._write(node)
            self._note(node)

    def _read(self, node: Node) -> None:
        for source in node.all_input_nodes:
            for memory, count in self._seen.get(source, {}).items():
                if self._writes[memory] != count:
                    raise NotWhole

    def _note(self, node: Node) -> None:
        memories = {m: self._writes[m] for m in _memories(node) if m in self._writes}
        handle = _handle(node)
        if memories:
            self._seen[node] = memories
        if memories and handle is not None:
            self._nodes[handle].append(node)

    def _write(self, node: Node) -> None:
        target = node.args[0] if node.args else None
        handle = _handle(target) if isinstance(target, Node) else None
        if handle is None or _handle(node) != handle:
            raise NotWhole
        self.updates[node] = _Update(handle, *self._out_of_place(node), tuple(node.all_input_nodes))
        self._writes[handle[0]] += 1
        for same in self._nodes[handle]:
            self._seen[same][handle[0]] = self._writes[handle[0]]

    def _out_of_place(self, node: Node) -> tuple[Any, torch.fx.Graph | None]:
        op = _functional(node.target)
        if op in TABLE and op not in DECOMPOSITIONS and _keeps_type(node):
            return op, None
        positions = {n: i for i, n in enumerate(node.all_input_nodes)}
        leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
        looks = [(positions[v], _look(v.meta["val"])) if isinstance(v, Node) else _look(v) for v in leaves]
        key = op, str(structure), *looks
        if key not in self._bodies:
            self._bodies[key] = self._trace(op, node)
        return op, self._bodies[key]

    def _trace(self, op: Any, node: Node) -> torch.fx.Graph:
        """The op in terms of those with rules. Its placeholders are the nodes that `node` reads, in order."""
        sources = node.all_input_nodes

        def call(*values: Any) -> Any:
            known = dict(zip(sources, values))
            return op(*_mapped(node.args, known), **_mapped(node.kwargs, known))

        with torch.no_grad(), self._mode:
            values = [fresh(n.meta["val"]) for n in sources]
            made = make_fx(call, DECOMPOSITIONS, tracing_mode="real", _allow_non_fake_inputs=True)(*values)
        (result,) = pytree.tree_leaves(made.graph.output_node().args)
        seen, expected = result.meta["val"], node.meta["val"]
        if (seen.shape, seen.dtype) != (expected.shape, expected.dtype):
            raise NotWhole
        if any(n.op == "get_attr" or is_mutation(n) for n in made.graph.nodes):
            raise NotWhole
        return made.graph


def _replacement(graph: torch.fx.Graph, node: Node, update: _Update, sources: Sequence[Node]) -> Node:
    """The new value, inserted before the in-place op."""
    with graph.inserting_before(node):
        if update.body is None:
            made = graph.call_function(update.op, node.args, node.kwargs)
            made.meta = dict(node.meta)
            return made
        return _inlined(graph, update.body, node, sources)


def _inlined(graph: torch.fx.Graph, body: torch.fx.Graph, node: Node, sources: Sequence[Node]) -> Node:
    known = dict(zip(body.find_nodes(op="placeholder"), sources))
    for inner in body.nodes:
        if inner.op == "call_function":
            known[inner] = graph.node_copy(inner, known.__getitem__)
            known[inner].meta["custom"] = node.meta.get("custom")
    (result,) = pytree.tree_leaves(body.output_node().args)
    return known[result]


def _functional(target: Any) -> Any:
    """The out-of-place form of `add_.Tensor` and its like."""
    schema = target._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    name = schema.name.partition("::")[2]
    plain = len(written) == 1 and written[0] is schema.arguments[0] and name.endswith("_") and not name.endswith("__")
    if not plain or target.namespace != "aten" or torch.Tag.inplace_view in target.tags:
        raise NotWhole
    op = getattr(getattr(aten, name[:-1], None), target._overloadname, None)
    if op is None or op._schema.is_mutable or len(op._schema.returns) != 1:
        raise NotWhole
    return op


def _keeps_type(node: Node) -> bool:
    """Whether the out-of-place form has the type of its first argument: nothing is promoted or broadcast."""
    dtype, shape = node.meta["val"].dtype, node.meta["val"].shape
    others = [n.meta["val"] for n in node.all_input_nodes]
    tensors = [v for v in others if isinstance(v, torch.Tensor)]
    if node.target in (aten.copy_.default, aten.zero_.default, aten.fill_.Scalar):
        return True
    return dtype.is_floating_point and all(
        v.dtype == dtype and torch.broadcast_shapes(v.shape, shape) == shape for v in tensors
    )


def _look(value: Any) -> Any:
    """What of an argument can decide how an op is written out."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.size()), tuple(value.stride()), value.device
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        # Nothing can be asked of a number that only the step computes.
        return type(value), "" if free_unbacked_symbols(value) else str(value.node.expr)
    return type(value), str(value)


def _mapped(structure: Any, known: dict[Node, Any]) -> Any:
    leaves, spec = pytree.tree_flatten(structure, is_leaf=lambda v: isinstance(v, Node))
    return pytree.tree_unflatten([known[v] if isinstance(v, Node) else v for v in leaves], spec)


def fresh(value: Any) -> Any:
    """Memory of its own for each tensor, so that what is traced next sees no shared storage."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    for leaf in (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf


def _memories(node: Node) -> list[Any]:
    return [t.untyped_storage()._cdata for t in _tensors(node)]


def _handle(node: Node) -> _Handle | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
        return None
    memory = value.untyped_storage()._cdata
    numbers = (*value.size(), *value.stride(), value.storage_offset())
    return memory, value.dtype, value.dim(), *sizes(numbers)
