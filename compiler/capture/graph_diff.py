"""Whether two traces of one function are the same graph."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor

from .dtypes import to_numpy
from .source import origin_of_node


def first_difference(
    first: torch.fx.GraphModule,
    second: torch.fx.GraphModule,
    placeholders: Collection[torch.fx.Node] = (),
    results: Collection[int] = (),
) -> str | None:
    """The source line of the first node that differs; None when the graphs, constants included, are equal.

    `placeholders` and `results` (positions) of the second are left out: equal graphs do not use those placeholders.
    """
    a, b = list(first.graph.nodes), [n for n in second.graph.nodes if n not in placeholders]
    seen: tuple[dict[Any, int], dict[Any, int]] = {}, {}
    for index, (x, y) in enumerate(zip(a, b)):
        seen[0][x] = seen[1][y] = index
        if _text(first, x, seen[0]) != _text(second, y, seen[1], results):
            return origin_of_node(x).where
    if len(a) != len(b):
        longer = a if len(a) > len(b) else b
        return origin_of_node(longer[min(len(a), len(b)) - 1]).where
    return None


def _text(
    graph: torch.fx.GraphModule, node: torch.fx.Node, index: dict[Any, int], left_out: Collection[int] = ()
) -> str:
    given: Any = node.args, node.kwargs
    if node.op == "output":
        given = [value for i, value in enumerate(pytree.tree_leaves(given[0][0])) if i not in left_out]
    args = torch.fx.node.map_arg(given, lambda n: f"%{index.get(n)}")
    target: Any = node.target if node.op == "call_function" else ""
    if node.op == "get_attr":
        target = _constant(getattr(graph, str(node.target)))
    return f"{node.op} {target} {args}"


def _constant(value: Any) -> Any:
    """What a tensor holds; its identity where that cannot be read: a fake that the first trace left behind, sparse."""
    if isinstance(value, torch.fx.GraphModule):  # a body
        index = {node: i for i, node in enumerate(value.graph.nodes)}
        return [_text(value, node, index) for node in value.graph.nodes]
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, FakeTensor) or value.layout is not torch.strided or value.is_quantized:
        return id(value)
    return tuple(value.shape), value.dtype, hash(to_numpy(value).tobytes())
