"""What a function finds in Python and a trace bakes in: numbers, flags, modules, hooks. Noticed when it changes later.

Only what the function's code names counts: a Trainer's epoch counter, which another method keeps, is nobody's business.
The code is that of the function, of the functions and methods that it names, and of the modules' forward.
"""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from .code_names import global_names, mentioned
from .python_random import GENERATORS, has_drawn, set_state, state_of
from .reach import LIBRARIES, is_structure, slots_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CHILDREN = ("_modules", "_parameters", "_buffers")
_NOT_CALLED = frozenset({"__init__", "__new__", "__post_init__", "__repr__", "__str__", "__del__"})
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
_LONGEST = 1000  # entries of a list or dict that are looked at one by one
_SAMPLE = 4096  # elements of an array
_GONE = object()


class Watched(NamedTuple):
    """`container[key]` was `value` when the function was traced; `name` is its path in the program."""

    name: str
    container: Any
    key: Any
    value: Any


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
        return getattr(self._item, key, _GONE)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self._item, key, value)


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
        return _GONE


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
    if type(now) is not type(before) or not isinstance(now, torch.nn.Module) or not _is_library(type(now).__module__):
        return False
    mine, other = vars(now), vars(before)
    if any(mine[table] for table in ("_modules", *_HOOKS)) or mine["_parameters"].keys() != other["_parameters"].keys():
        return False
    keys = ("training", *getattr(type(now), "__constants__", ()))
    return all(is_same(mine.get(key), other.get(key)) for key in keys)


def watch(function: Any) -> Watch:
    """The surroundings of a function as they are now."""
    names: set[str] = set()
    while True:
        walk = _Walk(frozenset(names))
        walk.go(function)
        if walk.found_names <= names:
            return walk.watch
        names |= walk.found_names


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
        self.found_names |= set(_names(function.__code__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            view = _Cell(cell)
            value = look(Watched(name, view, None, None))
            if value is not _GONE:
                self._edge(view, None, value, name)
        for name in global_names(function.__code__):
            value = globals_of.get(name, _GONE)
            if isinstance(value, types.ModuleType):
                if not _is_library(value.__name__):
                    self._attributes(value, name)
            elif value is not _GONE:
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
        for table in _HOOKS:
            self._contents(attributes[table], f"{path}.{table}")
        if not _is_library(type(module).__module__):
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
            if not _is_library(kind.__module__):
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


def _is_library(name: str) -> bool:
    return name.partition(".")[0] in LIBRARIES


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions behind a method, property, static method, or what a decorator made of them."""
    parts = [getattr(value, n, None) for n in ("fget", "func", "__func__", "__wrapped__")]
    for part in (value, *parts):
        if isinstance(part, types.FunctionType):
            yield part


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names and texts in a code and in the functions that it makes."""
    found = dict.fromkeys(mentioned(code))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= dict.fromkeys(_names(constant))
        elif isinstance(constant, str) and len(constant) < 100:
            found[constant] = None
    return tuple(found)
