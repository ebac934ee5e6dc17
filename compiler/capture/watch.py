"""What a trace bakes in: numbers, flags, modules, hooks as they were then; put back after it, and compared later.

surroundings.py finds them.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from .python_random import has_drawn, set_state
from .reach import is_library

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SAMPLE = 4096  # elements of an array
GONE = object()  # nothing is there any more


class Watched(NamedTuple):
    """`container[key]` was `value` when the function was traced; `name` is its path in the program."""

    name: str
    container: Any
    key: Any
    value: Any


@dataclass
class Watch:
    """Single values, the sizes of containers, and whole contents (container, copy) of a function's surroundings."""

    values: list[Watched] = field(default_factory=list)
    sizes: list[tuple[str, Any, int]] = field(default_factory=list)
    contents: list[tuple[str, Any, Any]] = field(default_factory=list)
    tensors: dict[int, list[Watched]] = field(default_factory=dict)
    flags: list[tuple[str, torch.Tensor, bool, int]] = field(default_factory=list)
    arrays: list[tuple[str, Any, Any, np.ndarray[Any, Any]]] = field(default_factory=list)
    ambient: tuple[Any, ...] = field(default_factory=lambda: ambient())
    generators: list[tuple[str, Any, Any]] = field(default_factory=list)
    changed: dict[str, None] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    functions: list[types.FunctionType] = field(default_factory=list)  # methods and what they call

    def put_back(self) -> None:
        """Undo what a traced run has changed, and watch that no longer: a compiled call does not change it."""
        for watched in [v for v in self.values if not is_same(look(v), v.value)]:
            watched.container[watched.key] = watched.value
            self.values.remove(watched)
            self.changed[watched.name] = None
        for entry in [c for c in self.contents if c[1] != c[2]]:
            name, container, copy = entry
            _refill(container, copy)
            self.contents.remove(entry)
            self.changed[name] = None
        for name, generator, state in self.generators:
            if has_drawn(generator, state):
                set_state(generator, state)
                self.drawn.append(name)

    def hold_tensors(self, used: Sequence[torch.Tensor]) -> None:
        """Watch the tensors that several places hold (tied weights, a module and its optimizer): they stay one."""
        for tensor in used:
            places = self.tensors.get(id(tensor), ())
            self.values += places if len(places) > 1 else ()

    def hold_flags(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Watch whether parameters require a gradient, and the hooks on them."""
        for name, tensor in tensors:
            if isinstance(tensor, torch.nn.Parameter) or (tensor.is_leaf and tensor.requires_grad):
                self.flags.append((name, tensor, tensor.requires_grad, hook_count(tensor)))


def _refill(container: Any, copy: Any) -> None:
    """A list or a dict has again what `copy` has."""
    container.clear()
    if isinstance(container, list):
        container += copy
    else:
        container.update(copy)


def hook_count(tensor: Any) -> int:
    """Hooks on a tensor's gradient."""
    return len(tensor._backward_hooks or ()) + len(tensor._post_accumulate_grad_hooks or ())


def sampled(array: Any) -> Any:
    """Up to some thousand elements of an array, spread over it: data may be large, and is looked at in every call."""
    return array.flat[:: max(1, array.size // _SAMPLE)] if isinstance(array, np.ndarray) else array


def ambient() -> tuple[Any, ...]:
    """Settings of torch's that decide what a function computes."""
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.get_default_dtype()


def look(watched: Watched) -> Any:
    """What is there now."""
    try:
        return watched.container[watched.key]
    except LookupError:
        return GONE


def is_same(now: Any, before: Any) -> bool:
    """Whether a value is what it was: the same object, or an equal number, text or flag."""
    if now is before:
        return True
    return type(now) is type(before) and is_plain(now) and bool(now == before or (now != now and before != before))


def is_plain(value: Any) -> bool:
    """A value that a graph can only hold as a constant."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, enum.Enum, torch.dtype, torch.device))


def is_alike(now: Any, before: Any) -> bool:
    """Whether two layers of torch's compute the same from their tensors."""
    if type(now) is not type(before) or not isinstance(now, torch.nn.Module) or not is_library(type(now).__module__):
        return False
    mine, other = vars(now), vars(before)
    if any(mine[table] for table in ("_modules", *HOOKS)) or mine["_parameters"].keys() != other["_parameters"].keys():
        return False
    keys = ("training", *getattr(type(now), "__constants__", ()))
    return all(is_same(mine.get(key), other.get(key)) for key in keys)
