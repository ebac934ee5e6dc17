"""The arguments of a call against the nesting of the example: their leaves, or which key or argument does not fit."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import torch.utils._pytree as pytree
from pfvm.errors import InputError, did_you_mean, short

Leaf = tuple[str, Any]  # path ("a.b", "0") and value


def arguments_like(args: tuple[Any, ...], spec: pytree.TreeSpec, names: Sequence[str]) -> Iterator[Leaf]:
    """The leaves of `args` in the example's order. Raises InputError.

    `spec` is the example's tuple of arguments, `names` what they are called; [""] for a single container, whose own
    keys are the names.
    """
    expected = spec.children()
    if len(args) > len(expected):
        known = ", ".join(filter(None, names)) or f"one, {_what(expected[0])}" if names else "none"
        raise InputError(f"{len(args)} arguments were given; the arguments of the compiled function are: {known}")
    if len(args) < len(expected):
        name, child = names[len(args)], expected[len(args)]
        raise InputError(f"missing argument{f' {name!r}' if name else ''}: expected {_what(child)}")
    for name, value, child in zip(names, args, expected):
        yield from leaves_like(value, child, name)


def leaves_like(value: Any, spec: pytree.TreeSpec, path: str = "") -> Iterator[Leaf]:
    """The leaves of `value`, found at `path`, in the example's order. Raises InputError."""
    if spec.is_leaf():
        if isinstance(value, (dict, list, tuple)):
            raise _misfit(value, spec, path)
        yield path, value
    elif spec.type is dict and isinstance(value, dict):
        _check_keys(value, spec.context, path)
        for key, child in zip(spec.context, spec.children()):
            yield from leaves_like(value[key], child, _join(path, key))
    elif type(value) is not _class(spec):
        raise _misfit(value, spec, path)
    elif spec.type in (list, tuple):
        if len(value) != spec.num_children:
            raise InputError(f"{_place(path)} has {len(value)} elements; in the example it had {spec.num_children}")
        for index, (element, child) in enumerate(zip(value, spec.children())):
            yield from leaves_like(element, child, _join(path, index))
    else:  # named tuples, registered classes
        leaves, found = pytree.tree_flatten(value)
        if found != spec:
            raise InputError(f"{_place(path)} is a {type(value).__name__} that is not nested as in the example")
        yield from ((path, leaf) for leaf in leaves)


def _check_keys(given: dict[Any, Any], expected: Sequence[Any], path: str) -> None:
    unknown = [_join(path, key) for key in given if key not in expected]
    missing = [_join(path, key) for key in expected if key not in given]
    if missing:
        tail = f"; {unknown[0]!r}, which was given, is not in the example" if unknown else ""
        raise InputError(f"missing input {', '.join(map(repr, missing))}{tail}")
    if unknown:
        known = [_join(path, key) for key in expected]
        raise InputError(
            f"unknown input {unknown[0]!r}: the example has {', '.join(map(repr, known))}"
            f"{did_you_mean(unknown[0], known)}"
        )


def _misfit(value: Any, spec: pytree.TreeSpec, path: str) -> InputError:
    is_nested = isinstance(value, (dict, list, tuple))
    given = f"a {type(value).__name__}" if is_nested or "\n" in repr(value) else short(value)
    return InputError(f"{_place(path)} is {given}; expected {_what(spec)}, as in the example")


def _what(spec: pytree.TreeSpec) -> str:
    if spec.is_leaf():
        return "a tensor or number"
    if spec.type is dict:
        return f"a dict with {', '.join(map(repr, spec.context))}"
    return f"a {_class(spec).__name__} of {spec.num_children}"


def _class(spec: pytree.TreeSpec) -> Any:
    """The container's own class: torch files all named tuples under one type."""
    return spec.context if spec.type is collections.namedtuple else spec.type


def _place(path: str) -> str:
    return f"input {path!r}" if path else "the argument"


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
