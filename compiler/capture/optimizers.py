"""Optimizers in a trace: their numbers and tensors, what a first step creates, and one plain path through them.

`optimizer.state` is keyed by parameters and filled by the first step. A trial run notes what is created and how its
first value is computed, so that the graph can start from that value without any step having been taken.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pfvm.errors import CaptureError
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .initial import first_value
from .numbers import ReachedNumber, is_number
from .optimizer_forms import traceable_forms
from .reach import Place, Reach, ReachedTensor
from .source import here

# The variants compute the same; the plain one is traced, whichever the user chose for speed.
PLAIN = {"foreach": False, "fused": None, "capturable": False}
# Read once, where a state tensor is made.
_INITIAL_ONLY = frozenset({"initial_accumulator_value", "initial_lr"})
# Written as integers by many; other integers (a number of inner steps, say) may be structure.
_REAL = frozenset({"lr", "momentum", "dampening", "weight_decay", "eps", "alpha", "beta", "lr_decay", "momentum_decay"})


@dataclass(frozen=True)
class OptimizerState:
    """What the optimizers hold: tensors, numbers, and plain values that a trace bakes in (`nesterov=True`)."""

    tensors: list[ReachedTensor]
    numbers: list[ReachedNumber]
    constants: list[tuple[str, Any, Place]]


def find(reach: Reach) -> OptimizerState:
    """Read the optimizers that the function reaches, as they stand."""
    found = OptimizerState([], [], [])
    names = {id(t.tensor): t.name for t in reach.tensors}
    for name, optimizer in reach.optimizers:
        for index, group in enumerate(optimizer.param_groups):
            prefix = name if len(optimizer.param_groups) == 1 else f"{name}.{index}"
            for key, value in group.items():
                if key not in ("params", *PLAIN, *_INITIAL_ONLY):
                    _add_hyperparameter(found, optimizer, index, key, value, f"{prefix}.{key}")
        for parameter, entries in optimizer.state.items():
            for key, value in entries.items() if isinstance(entries, dict) else ():
                entry = new_entry(optimizer, parameter, names.get(id(parameter), name), key, value)
                if isinstance(entry, ReachedTensor):
                    found.tensors.append(entry)
                elif isinstance(entry, ReachedNumber):
                    found.numbers.append(entry)
    return found


def _add_hyperparameter(found: OptimizerState, optimizer: Any, group: int, key: str, value: Any, name: str) -> None:
    if isinstance(value, torch.Tensor):
        return  # reached as a tensor
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (tuple, list)) and value and all(type(v) is float for v in value):
        for i, number in enumerate(value):
            place = _in_tuple(optimizer, group, key, i)
            found.numbers.append(ReachedNumber(f"{name}.{i}", number, place, "hyperparameter"))
    elif key == "dampening" and value == 0:
        found.constants.append((name, value, _in_group(optimizer, group, key)))  # no arithmetic on every momentum
    elif type(value) is float or (type(value) is int and key in _REAL):
        place, later = _in_group(optimizer, group, key), None
        if key == "dampening" and isinstance(optimizer, torch.optim.SGD):
            place, later = Place(None, _dampening(optimizer, group), place.write), place
        found.numbers.append(ReachedNumber(name, float(value), place, "hyperparameter", later=later))
    else:
        found.constants.append((name, value, _in_group(optimizer, group, key)))


def _in_group(optimizer: Any, group: int, key: str) -> Place:
    return Place(
        None,
        lambda _: optimizer.param_groups[group][key],
        lambda _, value: optimizer.param_groups[group].__setitem__(key, value),
    )


def _in_tuple(optimizer: Any, group: int, key: str, index: int) -> Place:
    def write(_: Any, value: Any) -> None:
        values = list(optimizer.param_groups[group][key])
        values[index] = value
        optimizer.param_groups[group][key] = tuple(values)

    return Place(None, lambda _: optimizer.param_groups[group][key][index], write)


def _dampening(optimizer: Any, group: int) -> Callable[[Any], Any]:
    """SGD takes the first gradient whole: buf = grad, which is 0·momentum + (1 - 0)·grad."""

    def read(_: Any) -> Any:
        params, value = optimizer.param_groups[group]["params"], optimizer.param_groups[group]["dampening"]
        if not is_number(value):
            return value  # a symbol, while a step is traced
        is_first = all(optimizer.state.get(p, {}).get("momentum_buffer") is None for p in params)
        return 0.0 if is_first else float(value)

    return read


def new_entry(
    optimizer: Any, parameter: Any, owner: str, key: Any, value: Any, is_initial: bool = False
) -> ReachedTensor | ReachedNumber | None:
    """An entry of `optimizer.state[parameter]` as state; None for what holds no numbers."""
    place = Place(
        None,
        lambda _: optimizer.state.get(parameter, {})[key],
        lambda _, new: optimizer.state[parameter].__setitem__(key, new),
    )
    name = f"{owner}.{str(key).removesuffix('_buffer')}"
    if isinstance(value, torch.Tensor):
        return ReachedTensor(name, value, place, "optimizer", is_initial)
    return ReachedNumber(name, value, place, "optimizer", is_initial) if is_number(value) else None


@dataclass(frozen=True)
class Created:
    """A state entry that the function made: its first value; for a tensor its FX node, and the last node then."""

    optimizer: Any
    parameter: torch.Tensor
    key: Any
    value: Any
    node: torch.fx.Node | None
    last: torch.fx.Node | None


class _Entries(dict[Any, Any]):
    """`optimizer.state[parameter]` during a trace; the user's own dictionary is not written to."""

    def __init__(self, entries: dict[Any, Any], optimizer: Any, parameter: Any, log: list[Created]) -> None:
        super().__init__(entries)
        self._owner = optimizer, parameter, log

    def __setitem__(self, key: Any, value: Any) -> None:
        optimizer, parameter, log = self._owner
        if self.get(key) is None and value is not None:
            log.append(Created(optimizer, parameter, key, value, *_made_by(value)))
        super().__setitem__(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class _States(defaultdict[Any, Any]):
    """`optimizer.state` during a trace."""

    def __init__(self, optimizer: Any, log: list[Created]) -> None:
        super().__init__(dict)
        self._optimizer, self._log = optimizer, log
        for parameter, entries in optimizer.state.items():
            self[parameter] = _Entries(entries, optimizer, parameter, log) if isinstance(entries, dict) else entries

    def __missing__(self, parameter: Any) -> Any:
        self[parameter] = _Entries({}, self._optimizer, parameter, self._log)
        return self[parameter]


def _made_by(value: Any) -> tuple[torch.fx.Node | None, torch.fx.Node | None]:
    mode = get_proxy_mode()
    if mode is None or not isinstance(value, torch.Tensor):
        return None, None
    slot = get_proxy_slot(value, mode.tracer, None)
    last = next(iter(reversed(mode.tracer.graph.nodes)), None)
    return (None, None) if slot is None else (slot.proxy.node, last)


@contextlib.contextmanager
def traced_optimizers(reach: Reach, log: list[Created]) -> Iterator[None]:
    """Within the block the optimizers take the plain path and write to copies of their state; `log` is filled."""
    saved: list[Callable[[], None]] = []
    known = {id(optimizer) for _, optimizer in reach.optimizers}
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: _refuse_unknown(optimizer, known))
    try:
        for _, optimizer in reach.optimizers:
            saved.append(_restorer(vars(optimizer), "state"))
            optimizer.state = _States(optimizer, log)
            for settings in (optimizer.defaults, *optimizer.param_groups):
                saved.append(_refiller(settings))
                settings.update({key: plain for key, plain in PLAIN.items() if key in settings})
        with traceable_forms():
            yield
    finally:
        hook.remove()
        for restore in reversed(saved):
            restore()


def _refuse_unknown(optimizer: Any, known: set[int]) -> None:
    if id(optimizer) not in known:
        raise CaptureError(
            f"{here()}: an optimizer ({type(optimizer).__name__}) makes a step, and no variable, global or attribute "
            "of the function leads to it; let the function, or an object that it uses, hold it"
        )


def _restorer(container: dict[Any, Any], key: Any) -> Callable[[], None]:
    value = container[key]
    return lambda: container.__setitem__(key, value)


def _refiller(container: dict[Any, Any]) -> Callable[[], None]:
    entries = dict(container)

    def refill() -> None:
        container.clear()
        container.update(entries)

    return refill


def first_entries(
    log: Sequence[Created], reach: Reach, placeholders: dict[torch.fx.Node, Any]
) -> list[ReachedTensor | ReachedNumber]:
    """The created entries as state that starts from its first value.

    `placeholders` are the values behind the trial graph's placeholders, as far as they are state. Raises CaptureError
    where a first value follows from the data.
    """
    names = {id(t.tensor): t.name for t in reach.tensors}
    optimizers = {id(optimizer): name for name, optimizer in reach.optimizers}
    found = []
    for made in log:
        owner = names.get(id(made.parameter), optimizers[id(made.optimizer)])
        value = made.value
        if isinstance(value, torch.Tensor):
            value = _first_tensor(made, owner, placeholders)
        elif not is_number(value):
            continue
        entry = new_entry(made.optimizer, made.parameter, owner, made.key, value, is_initial=True)
        if entry is not None:
            found.append(entry)
    return found


def _first_tensor(made: Created, owner: str, placeholders: dict[torch.fx.Node, Any]) -> torch.Tensor:
    if isinstance(made.optimizer, torch.optim.SGD) and made.key == "momentum_buffer":
        return torch.zeros_like(made.parameter)  # see _dampening
    value = None
    if made.node is not None and made.last is not None:
        value = first_value(made.node, made.last, placeholders)
    if value is None and not isinstance(made.value, FakeTensor):
        value = made.value.detach().clone()
    if value is None:
        kind = type(made.optimizer).__name__
        raise CaptureError(
            f"{kind} makes the state {made.key!r} of {owner!r} from data in its first step, so that the first step is "
            "another graph than the next; take one step in PyTorch, then compile"
        )
    return value
