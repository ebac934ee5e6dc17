"""The table of rules: ATen overload → function that writes its ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# rule(emitter, fx_node, *args, **kwargs) -> Value, or a list of them (None for a result nobody reads)
Rule = Callable[..., Any]

TABLE: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a function for these ATen overloads."""

    def register(function: Rule) -> Rule:
        for target in targets:
            assert target not in TABLE, f"two rules for {target}"
            TABLE[target] = function
        return function

    return register


def register(function: Rule, packet: Any, *overloads: str) -> None:
    """Register a function for overloads of one op by their names."""
    for overload in overloads:
        rule(getattr(packet, overload))(function)


def is_used(node: torch.fx.Node, index: int) -> bool:
    """Whether somebody reads this one of several results."""
    return any(user.args[1] == index and user.users for user in node.users)
