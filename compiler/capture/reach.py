"""Everything a function can reach: its modules, tensors and containers, with the path by which each is reached.

Nobody registers anything. The walk follows closure cells, globals that the code names, defaults, bound `self`,
partials, modules, containers and plain objects. A tensor's path becomes its name; its `Place` reads it again at call
time, so that a weight that was replaced (not just changed in place) is seen.
"""

from __future__ import annotations

import argparse
import collections
import functools
import heapq
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pfvm.compiler.signature import Kind
from pfvm.errors import CaptureError

from .code_names import global_names, mentioned

_LIBRARIES = frozenset({"torch", "numpy", "pfvm", "onnx", "onnx_ir", "builtins"}) | sys.stdlib_module_names
_LONGEST_CONTAINER = 100_000  # a longer list is data, not structure
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Place:
    """How to read an object again: the reader applied to what the parent place holds now."""

    parent: Place | None
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None] | None = None

    def get(self) -> Any:
        """The object that hangs here now; LookupError or AttributeError when it is gone."""
        return self.read(self.parent.get() if self.parent is not None else None)

    def set(self, value: Any) -> None:
        """Hang another object here. Raises CaptureError where Python cannot (a tuple's entry, a default argument)."""
        if self.write is None:
            raise CaptureError("a tensor that a tuple or a default argument holds cannot be replaced")
        self.write(self.parent.get() if self.parent is not None else None, value)


@dataclass
class ReachedTensor:
    """A tensor, its readable path ("model.linear1.weight") and where it hangs (None: only the trace saw it).

    `is_initial` says that nothing hangs there yet, and that `tensor` holds the value from which a step starts then:
    optimizer state before the first step, a gradient before the first backward. `is_required` is said of a gradient
    without which the function takes another path.
    """

    name: str
    tensor: torch.Tensor
    place: Place | None
    role: Kind | None = None
    is_initial: bool = False
    is_required: bool = False

    @property
    def kind(self) -> Kind:
        return self.role or ("param" if isinstance(self.tensor, torch.nn.Parameter) else "buffer")


@dataclass
class Reach:
    """What the walk found. `containers` are (its dict or list, shallow copy), to put back after the trace.

    `paths` are the containers' names, None where they are a library's. `drawn` are lines that drew random numbers of
    Python's, `changed` the names of what the function has changed, in the runs so far.
    """

    tensors: list[ReachedTensor] = field(default_factory=list)
    module_names: dict[int, str] = field(default_factory=dict)
    modules: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[tuple[str, torch.optim.Optimizer]] = field(default_factory=list)
    containers: list[tuple[Any, Any]] = field(default_factory=list)
    put_back: list[Callable[[], None]] = field(default_factory=list)
    drawn: dict[str, None] = field(default_factory=dict)
    paths: list[str | None] = field(default_factory=list)
    changed: dict[str, None] = field(default_factory=dict)

    def restore(self) -> None:
        """Undo what the traced function did to the reached containers (attributes set, lists appended to)."""
        for more in self.put_back:
            more()
        for (container, copy), path in zip(self.containers, self.paths):
            if isinstance(container, dict):
                if container.keys() != copy.keys() or any(container[k] is not v for k, v in copy.items()):
                    self._note(path, [k for k, v in container.items() if copy.get(k, self) is not v] or list(copy))
                    container.clear()
                    container.update(copy)
            elif len(container) != len(copy) or any(a is not b for a, b in zip(container, copy)):
                self._note(path, [""])
                container[:] = copy

    def _note(self, path: str | None, keys: list[Any]) -> None:
        if path is not None:
            self.changed.update(
                (f"{path}.{key}".strip(".") if isinstance(key, (str, int)) else path, None) for key in keys
            )


def walk(function: Any, methods: Sequence[types.FunctionType] = ()) -> Reach:
    """The reach of a function, bound method, partial, callable object or nn.Module, and of `methods` that it calls."""
    reach = Reach()
    seen: dict[int, Any] = {}  # holds the objects, so that no id is used twice
    order = itertools.count()
    root = Place(None, lambda _: function)
    queue: list[tuple[int, int, Any, Place, str]] = [(0, next(order), function, root, "")]
    queue += [(3, next(order), method, Place(None, _always(method)), "") for method in methods]
    while queue:
        _, _, item, place, path = heapq.heappop(queue)
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            reach.tensors.append(ReachedTensor(path or "tensor", item, place))
            for hook in _hooks_of(item):
                heapq.heappush(queue, (1, next(order), hook, Place(place, _always(hook)), ""))
            continue
        if isinstance(item, torch.jit.ScriptModule):
            raise CaptureError(f"{path or 'the module'} is TorchScript; pass the Python module that it was made from")
        if isinstance(item, torch.nn.Module):
            reach.modules.append(item)
            reach.module_names[id(item)] = path or type(item).__name__
        if isinstance(item, torch.optim.Optimizer):
            reach.optimizers.append((path or "optimizer", item))
        for label, child, read, *write in _children(item, reach):
            if is_structure(child):
                is_function = isinstance(child, (types.FunctionType, types.MethodType, functools.partial))
                child_path = path if is_function else ".".join(p for p in (path, label) if p)
                heapq.heappush(queue, (_priority(child), next(order), child, Place(place, read, *write), child_path))
        own = isinstance(item, (dict, list)) or not is_library(type(item).__module__)
        reach.paths += [path if own else None] * (len(reach.containers) - len(reach.paths))
    return reach


def _priority(item: Any) -> int:
    """Modules first: a weight is named by its module, not by the optimizer or list that holds it too."""
    if isinstance(item, torch.nn.Module):
        return 0
    return 2 if isinstance(item, torch.optim.Optimizer) else 1


def is_library(module: str) -> bool:
    """Is a module of this name torch's, Python's or another library's that a step builds on, and no user's own?"""
    return module.partition(".")[0] in _LIBRARIES


def is_structure(item: Any) -> bool:
    """Whether a tensor can hang below `item`. Numbers, strings, classes and library objects are leaves."""
    if isinstance(item, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, functools.partial)):
        return True
    if isinstance(item, (dict, list, tuple, set, frozenset, collections.deque)):
        return len(item) <= _LONGEST_CONTAINER
    if isinstance(item, types.MethodType) and is_structure(item.__self__):
        return True  # a library's method of the program's object, such as optimizer.step
    if isinstance(item, (types.FunctionType, types.MethodType)):
        return not is_library(getattr(item, "__module__", None) or "")
    if isinstance(item, (type, types.ModuleType)):
        return False
    if isinstance(item, (types.SimpleNamespace, argparse.Namespace)):
        return True
    return not is_library(type(item).__module__) and (hasattr(item, "__dict__") or hasattr(item, "__slots__"))


# Readers for a Place.


_Access = tuple[Callable[[Any], Any], Callable[[Any, Any], None]]


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _item(key: Any) -> _Access:
    return lambda container: container[key], lambda container, value: container.__setitem__(key, value)


def _attribute(key: str) -> _Access:
    return lambda item: vars(item)[key], lambda item, value: item.__dict__.update({key: value})


def _table_entry(table: str, key: str) -> _Access:
    return lambda module: vars(module)[table][key], lambda module, value: vars(module)[table].__setitem__(key, value)


def _cell(index: int) -> _Access:
    return (
        lambda function: function.__closure__[index].cell_contents,
        lambda function, value: setattr(function.__closure__[index], "cell_contents", value),
    )


def _global(name: str, attribute: str | None = None) -> _Access:
    if attribute is None:
        return (
            lambda function: function.__globals__[name],
            lambda function, value: function.__globals__.__setitem__(name, value),
        )
    return (
        lambda function: getattr(function.__globals__[name], attribute),
        lambda function, value: setattr(function.__globals__[name], attribute, value),
    )


_Child = tuple[Any, ...]  # label, child, how to read it, how to replace it where that can be


def _children(item: Any, reach: Reach) -> Iterator[_Child]:
    if isinstance(item, types.MethodType):
        yield "", item.__self__, lambda m: m.__self__
        yield "", item.__func__, lambda m: m.__func__
    elif isinstance(item, types.FunctionType):
        yield from _children_of_function(item)
    elif isinstance(item, functools.partial):
        yield "", item.func, lambda p: p.func
        yield "", item.args, lambda p: p.args
        yield "", item.keywords, lambda p: p.keywords
    elif isinstance(item, torch.nn.Module):
        yield from _children_of_module(item, reach)
    elif isinstance(item, dict):
        reach.containers.append((item, dict(item)))
        for i, (k, v) in enumerate(item.items()):
            yield str(k) if isinstance(k, (str, int)) else str(i), v, *_item(k)
    elif isinstance(item, (list, tuple)):
        if isinstance(item, list):
            reach.containers.append((item, list(item)))
            yield from ((str(i), v, *_item(i)) for i, v in enumerate(item))
        else:
            yield from ((str(i), v, _item(i)[0]) for i, v in enumerate(item))
    elif isinstance(item, (set, frozenset, collections.deque)):
        yield from ((str(i), v, _always(v)) for i, v in enumerate(item))
    else:
        yield from _children_of_object(item, reach)


def _children_of_function(function: types.FunctionType) -> Iterator[_Child]:
    for i, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or ())):
        try:
            yield name, cell.cell_contents, *_cell(i)
        except ValueError:  # an empty cell: assigned after the function was made
            continue
    for name in global_names(function.__code__):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value, *_global(name)
        elif not is_library(value.__name__):
            for attribute in mentioned(function.__code__):
                if attribute in vars(value):
                    yield f"{name}.{attribute}", vars(value)[attribute], *_global(name, attribute)
    if function.__defaults__:
        yield "", function.__defaults__, lambda f: f.__defaults__
    if function.__kwdefaults__:
        yield "", function.__kwdefaults__, lambda f: f.__kwdefaults__


def _children_of_module(module: torch.nn.Module, reach: Reach) -> Iterator[_Child]:
    attributes = vars(module)
    reach.containers.append((attributes, dict(attributes)))
    for table in _MODULE_TABLES:
        entries = attributes[table]
        reach.containers.append((entries, dict(entries)))
        yield from ((k, v, *_table_entry(table, k)) for k, v in entries.items() if v is not None)
    for key, value in attributes.items():
        if key in _MODULE_TABLES:
            continue
        if not (key.startswith("_") and key.endswith("_hooks")):
            yield key, value, *_attribute(key)
        elif isinstance(value, dict):
            yield from (("", hook, _always(hook)) for hook in value.values())


def _hooks_of(tensor: torch.Tensor) -> list[Any]:
    """Functions on a tensor's gradient; they may reach optimizers, as where each steps in the backward pass."""
    tables = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks) if tensor.is_leaf else ()
    return [hook for table in tables for hook in (table or {}).values() if is_structure(hook)]


def _children_of_object(item: Any, reach: Reach) -> Iterator[_Child]:
    """An optimizer's own state is keyed by tensors, not by names: see optimizers.py."""
    for key in slots_of(item):
        yield key, getattr(item, key), operator.attrgetter(key), lambda i, value, key=key: setattr(i, key, value)
    attributes = getattr(item, "__dict__", None)
    if attributes is None:
        return
    reach.containers.append((attributes, dict(attributes)))
    hidden = ("state", "defaults") if isinstance(item, torch.optim.Optimizer) else ()
    yield from ((k, v, *_attribute(k)) for k, v in attributes.items() if k not in hidden)


def slots_of(item: Any) -> list[str]:
    """Attributes of an object that are not in its __dict__, as far as they are set."""
    names = [name for kind in type(item).__mro__ for name in _as_names(vars(kind).get("__slots__", ()))]
    return [name for name in names if not name.startswith("__") and hasattr(item, name)]


def _as_names(slots: Any) -> Any:
    return (slots,) if isinstance(slots, str) else tuple(slots)
