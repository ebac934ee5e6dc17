"""Nested arguments and results as flat, named tensors, and back."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from pfvm.errors import CaptureError, InputError, short

from .nesting import arguments_like, leaves_like
from .nesting_calls import flattener, packer


@dataclass(frozen=True)
class Structure:
    """A pytree whose leaves are tensors, named by path ("a.b", "0"), and constants.

    `names[i]` is None where leaf i is a constant; `constants[i]` is its value (None at tensor leaves).
    """

    spec: pytree.TreeSpec
    names: tuple[str | None, ...]
    constants: tuple[Any, ...]

    @property
    def tensor_names(self) -> list[str]:
        return [n for n in self.names if n is not None]

    def renamed(self, new_names: dict[str, str]) -> Structure:
        """The same structure with tensor leaves renamed."""
        return Structure(self.spec, tuple(n if n is None else new_names[n] for n in self.names), self.constants)

    def pack(self, values: dict[str, Any]) -> Any:
        """The pytree with `values` at its tensor leaves."""
        leaves = [c if n is None else values[n] for n, c in zip(self.names, self.constants)]
        return self._packed(leaves)

    @functools.cached_property
    def _packed(self) -> Callable[[list[Any]], Any]:
        return packer(self.spec)

    @functools.cached_property
    def _flat(self) -> Callable[[Any, list[Any]], bool]:
        return flattener(self.spec)

    @functools.cached_property
    def _are_tensors(self) -> bool:
        return None not in self.names

    def unpack(self, tree: Any, top_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Tensor leaves by name. Raises InputError that names the place where the tree differs from the example.

        With `top_names`, `tree` is the tuple of the arguments of these names. Keys of dictionaries come in any order.
        """
        leaves: list[Any] = []
        if self._are_tensors and self._flat(tree, leaves):
            return dict(zip(self.names, leaves))  # type: ignore[arg-type]  # every leaf has a name
        found = leaves_like(tree, self.spec) if top_names is None else arguments_like(tree, self.spec, top_names)
        feeds: dict[str, Any] = {}
        for name, constant, (path, leaf) in zip(self.names, self.constants, found):
            if name is not None:
                feeds[name] = leaf
            elif not _same(leaf, constant):
                raise InputError(
                    f"input {path!r} is a constant of the compiled function: it was {short(constant)} at compile and "
                    f"is {short(leaf)} now; compile again, or pass it as a tensor"
                )
        return feeds


def describe(
    tree: Any, is_tensor: Any, root: str, top_names: Sequence[str] | None = None
) -> tuple[Structure, list[Any]]:
    """Structure of `tree` and its tensor leaves. `root` names a bare leaf; `top_names` names the first level."""
    with_path, spec = pytree.tree_flatten_with_path(tree)
    names: list[str | None] = []
    tensors = []
    for path, leaf in with_path:
        parts = [_key(k) for k in path]
        if top_names is not None and path:
            parts[0] = top_names[int(_key(path[0]))]
        if is_tensor(leaf):
            names.append(".".join(p for p in parts if p) or root)
            tensors.append(leaf)
        elif not _is_plain(leaf):
            where = ".".join(p for p in parts if p) or root
            raise CaptureError(
                f"{where!r} is a {type(leaf).__module__}.{type(leaf).__qualname__}, which may hide tensors; "
                "pass and return tensors, numbers, strings and None in dicts, lists and tuples"
            )
        else:
            names.append(None)
    constants = tuple(leaf if name is None else None for name, (_, leaf) in zip(names, with_path))
    given = [n for n in names if n is not None]
    if len(set(given)) != len(given):
        twice = next(n for n in given if given.count(n) > 1)
        raise CaptureError(f"two tensors are both named {twice!r} by their paths; rename a dictionary key")
    return Structure(spec, tuple(names), constants), tensors


def _same(leaf: Any, constant: Any) -> bool:
    if leaf is constant:
        return True
    return _is_plain(leaf) and bool(leaf == constant or (leaf != leaf and constant != constant))


def _is_plain(leaf: Any) -> bool:
    return leaf is None or isinstance(
        leaf, (bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device)
    )


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def arguments(sample: Any) -> tuple[Any, ...]:
    """A tuple is the positional arguments; anything else is the only one."""
    return sample if type(sample) is tuple else (sample,)


def argument_names(function: Any, count: int, sample: Any) -> list[str]:
    """Names of the positional arguments; the only argument, when it is a container, lends its own keys instead."""
    if type(sample) is not tuple and isinstance(sample, (dict, list)):
        return [""]
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return [f"input{i}" for i in range(count)]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    if len(names) < count:
        raise CaptureError(
            f"{getattr(function, '__name__', type(function).__name__)} takes {len(names)} positional arguments but "
            f"{count} sample inputs were given (a tuple is the positional arguments; "
            "pass a list or dict for one nested argument)"
        )
    return names[:count]
