"""Nestings that every call takes apart and puts together again, as functions made once for a nesting.

pytree reads its description of a nesting anew in every call, which costs more than the nesting itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils._pytree as pytree

_CONTAINERS = (dict, list, tuple)


def flattener(spec: pytree.TreeSpec) -> Callable[[Any, list[Any]], bool]:
    """(value, list) → whether the value is nested exactly as `spec`; then its leaves were appended to the list.

    False also for a nesting that only `nesting.leaves_like` can judge: subclasses, registered classes.
    """
    if spec.is_leaf():
        return _append
    children = [flattener(child) for child in spec.children()]
    if spec.type is dict:
        return _flattener_of_dict(list(zip(spec.context, children)))
    if spec.type not in (list, tuple):
        return lambda value, leaves: False
    kind, count = spec.type, len(children)

    def flat(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not kind or len(value) != count:
            return False
        return all(child(element, leaves) for child, element in zip(children, value))

    return flat


def _flattener_of_dict(entries: list[tuple[Any, Callable[[Any, list[Any]], bool]]]) -> Callable[[Any, list[Any]], bool]:
    keys, count = frozenset(key for key, _ in entries), len(entries)

    def flat(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not dict or len(value) != count or value.keys() != keys:
            return False
        return all(child(value[key], leaves) for key, child in entries)

    return flat


def _append(value: Any, leaves: list[Any]) -> bool:
    leaves.append(value)
    return not isinstance(value, _CONTAINERS)


def packer(spec: pytree.TreeSpec) -> Callable[[list[Any]], Any]:
    """Leaves → their nesting."""
    numbers = itertools.count()
    build = _builder(spec, numbers)
    return build if build is not None else lambda leaves: pytree.tree_unflatten(leaves, spec)


def _builder(spec: pytree.TreeSpec, numbers: Iterator[int]) -> Callable[[list[Any]], Any] | None:
    """None where something else than lists, tuples and dictionaries is in the nesting."""
    if spec.is_leaf():
        index = next(numbers)
        return lambda leaves: leaves[index]
    children = [_builder(child, numbers) for child in spec.children()]
    if spec.type not in _CONTAINERS or None in children:
        return None
    builders: list[Callable[[list[Any]], Any]] = [child for child in children if child is not None]
    if spec.type is dict:
        entries = list(zip(spec.context, builders))
        return lambda leaves: {key: build(leaves) for key, build in entries}
    if spec.type is list:
        return lambda leaves: [build(leaves) for build in builders]
    return lambda leaves: tuple([build(leaves) for build in builders])
