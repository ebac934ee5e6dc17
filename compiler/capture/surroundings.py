"""What a function finds in Python: the walk along the names in its code, for `Watch` to hold.

Only what the function's code names counts: a Trainer's epoch counter, which another method keeps, is nobody's business.
The code is that of the function, of the functions and methods that it names, and of the modules' forward.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .code_names import global_names, mentioned, texts
from .python_random import GENERATORS, state_of
from .reach import is_library, is_structure, slots_of
from .watch import GONE, HOOKS, Watch, Watched, is_plain, look, sampled

_CHILDREN = ("_modules", "_parameters", "_buffers")
_NOT_CALLED = frozenset({"__init__", "__new__", "__post_init__", "__repr__", "__str__", "__del__"})
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
_LONGEST = 1000  # entries of a list or dict that are looked at one by one


def watch(function: Any) -> Watch:
    """The surroundings of a function as they are now."""
    names: set[str] = set()
    while True:
        walk = _Walk(frozenset(names))
        walk.go(function)
        if walk.found_names <= names:
            return walk.watch
        names |= walk.found_names


class _Cell:
    """A closure's variable as a container."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def __getitem__(self, _: Any) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError as error:
            raise LookupError(str(error)) from error

    def __setitem__(self, _: Any, value: Any) -> None:
        self._cell.cell_contents = value


class _Slots:
    """An object's attributes as a container."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __getitem__(self, key: str) -> Any:
        return getattr(self._item, key, GONE)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self._item, key, value)


class _Walk:
    """One walk along what code names; it may find code that names more."""

    def __init__(self, names: frozenset[str]) -> None:
        self.watch = Watch()
        self.found_names: set[str] = set()
        self._names = names
        self._seen: dict[int, Any] = {}
        self._pending: list[tuple[Any, str]] = []

    def go(self, function: Any) -> None:
        self._follow(function, "")
        while self._pending:
            item, path = self._pending.pop()
            self._children(item, path)

    def _follow(self, item: Any, path: str) -> None:
        if id(item) not in self._seen and (is_structure(item) or isinstance(item, types.ModuleType)):
            self._seen[id(item)] = item
            self._pending.append((item, path))

    def _edge(self, container: Any, key: Any, value: Any, path: str) -> None:
        """`container[key]` is `value`, and the code may look at it."""
        watched = Watched(path, container, key, value)
        if isinstance(value, torch.Tensor):
            self.watch.tensors.setdefault(id(value), []).append(watched)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self.watch.arrays.append((path, container, key, sampled(value)))
        elif isinstance(value, GENERATORS):
            self.watch.generators.append((path, value, state_of(value)))
        elif is_plain(value) or isinstance(value, _FUNCTIONS) or is_structure(value):
            self.watch.values.append(watched)
            self._follow(value, path)

    def _children(self, item: Any, path: str) -> None:
        if isinstance(item, types.MethodType):
            self._follow(item.__func__, "")
            self._follow(item.__self__, path)
        elif isinstance(item, types.FunctionType):
            self._children_of_function(item)
        elif isinstance(item, functools.partial):
            for part in (item.func, *item.args, *item.keywords.values()):
                self._follow(part, path)
        elif isinstance(item, torch.optim.Optimizer):
            self._children_of_optimizer(item, path)
        elif isinstance(item, torch.nn.Module):
            self._children_of_module(item, path)
        elif isinstance(item, dict):
            self._children_of_dict(item, path)
        elif isinstance(item, (list, tuple)):
            self._children_of_list(item, path)
        elif isinstance(item, (set, frozenset, collections.deque)):
            for value in item:
                self._follow(value, path)
        else:
            for key in slots_of(item):
                self._edge(_Slots(item), key, getattr(item, key), _join(path, key))
            self._attributes(item, path)

    def _children_of_function(self, function: types.FunctionType) -> None:
        self.watch.functions.append(function)
        globals_of = function.__globals__
        self.found_names.update(mentioned(function.__code__), texts(function.__code__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            view = _Cell(cell)
            value = look(Watched(name, view, None, None))
            if value is not GONE:
                self._edge(view, None, value, name)
        for name in global_names(function.__code__):
            value = globals_of.get(name, GONE)
            if isinstance(value, types.ModuleType):
                if not is_library(value.__name__):
                    self._attributes(value, name)
            elif value is not GONE:
                self._edge(globals_of, name, value, name)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._follow(default, "")

    def _children_of_optimizer(self, optimizer: torch.optim.Optimizer, path: str) -> None:
        self.watch.sizes.append((f"{path}.param_groups", optimizer.param_groups, len(optimizer.param_groups)))
        for index, group in enumerate(optimizer.param_groups):
            self._children_of_list(group["params"], f"{path}.param_groups[{index}]")

    def _children_of_module(self, module: torch.nn.Module, path: str) -> None:
        attributes = vars(module)
        for table in _CHILDREN:
            entries = attributes[table]
            self.watch.sizes.append((f"{path}.{table}", entries, len(entries)))
            for key, value in entries.items():
                self._edge(entries, key, value, _join(path, key))
        for table in HOOKS:
            self._contents(attributes[table], f"{path}.{table}")
        if not is_library(type(module).__module__):
            self._attributes(module, path)
        elif attributes["_modules"] and "training" in self._names:
            self._edge(attributes, "training", module.training, f"{path}.training")

    def _children_of_dict(self, entries: dict[Any, Any], path: str) -> None:
        if len(entries) > _LONGEST:
            return
        for key, value in entries.items():
            if key in self._names or not isinstance(key, str) or not is_plain(value):
                label = key if isinstance(key, (str, int)) else type(key).__name__
                self._edge(entries, key, value, f"{path}[{label!r}]")

    def _children_of_list(self, items: Any, path: str) -> None:
        if all(map(is_plain, items)):
            if isinstance(items, list):
                self._contents(items, path)
        elif len(items) <= _LONGEST:
            if isinstance(items, list):
                self.watch.sizes.append((path, items, len(items)))
            for index, value in enumerate(items):
                if isinstance(items, list):
                    self._edge(items, index, value, f"{path}[{index}]")
                else:
                    self._follow(value, f"{path}[{index}]")

    def _contents(self, container: Any, path: str) -> None:
        copy = list(container) if isinstance(container, list) else dict(container)
        self.watch.contents.append((path, container, copy))
        for hook in copy.values() if isinstance(copy, dict) else ():
            self._follow(hook, path)

    def _attributes(self, item: Any, path: str) -> None:
        """Attributes of an object, its class or a module of the program's, as far as code names them."""
        attributes = getattr(item, "__dict__", {})
        for key in sorted(self._names & attributes.keys()):
            if key not in _CHILDREN:
                self._edge(attributes, key, attributes[key], _join(path, key))
        for kind in () if isinstance(item, types.ModuleType) else type(item).__mro__:
            if not is_library(kind.__module__):
                self._class(kind, set(attributes), path)

    def _class(self, kind: type, hidden: set[str], path: str) -> None:
        for key, value in vars(kind).items():
            if key in _NOT_CALLED:
                continue
            is_special = key.startswith("__") and key.endswith("__")
            if is_special or key == "forward" or key in self._names:
                for function in _functions_of(value):
                    self._follow(function, "")
                if is_plain(value) and not is_special and key not in hidden:
                    self.watch.values.append(Watched(_join(path, key), vars(kind), key, value))


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions behind a method, property, static method, or what a decorator made of them."""
    parts = [getattr(value, n, None) for n in ("fget", "func", "__func__", "__wrapped__")]
    for part in (value, *parts):
        if isinstance(part, types.FunctionType):
            yield part
