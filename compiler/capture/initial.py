"""The first value of a tensor that a traced function makes, where it does not follow from the function's inputs."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten

_SHAPE_ONLY = frozenset(
    {
        *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default),
        *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default),
        *(aten.new_empty_strided.default,),
    }
)


def reads_values(node: torch.fx.Node) -> bool:
    """False for an op that looks at nothing but shape and dtype of its first argument."""
    return node.target not in _SHAPE_ONLY


def first_value(made: torch.fx.Node, last: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.Tensor | None:
    """The value of `made` once `last` had run; None where it depends on an unknown placeholder.

    `known` are the values of placeholders (state). They are not written to.
    """
    values: dict[torch.fx.Node, Any] = {}
    with torch.no_grad(), _disable_current_modes():
        for node in sorted(_slice(made, last), key=order):
            if node.op == "placeholder" and node not in known:
                return None
            values[node] = _value(node, known, values)
    result = values[made]
    return result.detach().clone() if isinstance(result, torch.Tensor) else None


def order(node: torch.fx.Node) -> Any:
    """A key that sorts nodes as they stand in the graph."""
    return node._sort_key


def _slice(made: torch.fx.Node, last: torch.fx.Node) -> set[torch.fx.Node]:
    """What `made` was computed from, in-place updates included."""
    needed: set[torch.fx.Node] = set()
    pending = [made]
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        needed.add(node)
        pending += [n for n in node.all_input_nodes if reads_values(node) or n is not node.args[0]]
        pending += [user for user in node.users if _writes(user, node) and order(user) <= order(last)]
    return needed


def _value(node: torch.fx.Node, known: dict[torch.fx.Node, Any], values: dict[torch.fx.Node, Any]) -> Any:
    if node.op == "placeholder":
        return known[node].detach().clone() if isinstance(known[node], torch.Tensor) else known[node]
    if node.op == "get_attr":
        constant = cast(Any, getattr(node.graph.owning_module, str(node.target)))
        if isinstance(constant, FakeTensor):
            constant = cast(Any, constant).constant
        return constant.detach().clone()
    return _call(node, values)


def _writes(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and bool(node.args) and node.args[0] is target


def _call(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values.get(n, n))
    if not reads_values(node):
        seen = node.args[0].meta["val"]  # type: ignore[union-attr]
        args = (torch.empty_strided(seen.size(), seen.stride(), dtype=seen.dtype), *args[1:])
    assert callable(node.target)
    return node.target(*args, **kwargs)
