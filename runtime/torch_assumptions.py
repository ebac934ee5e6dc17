"""What a captured step takes for granted about Python values, checked at every call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.numbers import NumberGuard
from pfvm.compiler.capture.watch import Watched, ambient, hook_count, is_alike, is_plain, is_same, look, sampled
from pfvm.errors import StaleWeightError, short


class StepAssumptions:
    """Reads the numbers that are inputs; refuses a call where other Python values are not those of the capture."""

    def __init__(self, exported: Exported) -> None:
        self._numbers = list(exported.numbers.items())
        self._asked = [(number.name, number) for number in exported.asked]
        self._guards = exported.guards
        self._constants = exported.constants
        self._modules = [(m, m.training) for m in exported.modules if _reads_training(m)]
        self._module_names = exported.module_names
        self._settings = [(vars(m), key, vars(m)[key], m) for m in exported.modules for key in _settings(m)]
        self._trainable = [(s.name, s.tensor) for s in exported.states.values() if s.tensor.is_leaf]
        self._surroundings = exported.surroundings
        self._leaves = [tensor for _, tensor, _, _ in exported.surroundings.flags]
        self._flags = [flag for _, _, flag, _ in exported.surroundings.flags]
        self._only_reads = not exported.updates
        self._idle = list(_idle(exported))
        self._checked: Any = None

    def numbers(self) -> dict[str, Any]:
        """The lifted numbers by input name. Raises StaleWeightError with the name and what to do."""
        for module, training in self._modules:
            if module.training is not training:
                name = self._module_names.get(id(module), type(module).__name__)
                was = "training" if training else "eval"
                raise StaleWeightError(
                    f"module {name!r} was in {was} mode at compile and is not now; call {_mode_call(training)} on it, "
                    "or compile again"
                )
        for attributes, key, value, module in self._settings:
            now = attributes.get(key)
            if now is not value and now != value:
                raise StaleWeightError(
                    f"{key} of module {self._module_names.get(id(module), type(module).__name__)!r} was {short(value)} "
                    f"at compile and is {short(now)} now; compile again"
                )
        self._check_surroundings()
        for name, value, place in self._constants:
            now = _read(place)
            if now is not value and now != value:
                raise StaleWeightError(
                    f"{name} was {short(value)} at compile and is {short(now)} now: it is another step; compile again"
                )
        found = {name: self._current(name, number) for name, number in self._numbers}
        asked = {name: self._current(name, number) for name, number in self._asked}
        if (found, asked) != self._checked:
            self._check_guards(found, asked)
            self._checked = found, asked
        return found

    def _check_surroundings(self) -> None:
        """Raises StaleWeightError for what the function's code names and finds in Python."""
        for watched in self._surroundings.values:
            _, container, key, value = watched
            try:
                if container[key] is value:
                    continue
            except LookupError:
                pass
            if not is_same(look(watched), value) and not self._is_followed(look(watched), value):
                raise StaleWeightError(_changed(watched, look(watched)))
        for name, container, size in self._surroundings.sizes:
            if len(container) != size:
                raise StaleWeightError(
                    f"{name} had {size} entries at compile and has {len(container)} now: it is another program; "
                    "compile again"
                )
        self._check_flags()
        self._check_idle()
        if ambient() != self._surroundings.ambient:
            raise StaleWeightError(
                f"autocast, its dtype and the default dtype were {_named(self._surroundings.ambient)} at compile, now "
                f"{_named(ambient())}; put `with torch.autocast(…)` inside the function, or compile again"
            )
        for name, container, key, array in self._surroundings.arrays:
            if not np.array_equal(sampled(container[key]), array, equal_nan=array.dtype.kind in "fc"):
                raise StaleWeightError(
                    f"array {name!r} was changed after the compile, and the graph holds what it was; pass it in, keep "
                    "it in a tensor, or compile again"
                )
        for name, container, before in self._surroundings.contents:
            if container != before:
                raise StaleWeightError(
                    f"{name} was {short(before)} at compile and is {short(container)} now; compile again"
                )

    def _check_flags(self) -> None:
        """Raises StaleWeightError for another requires_grad, or another number of hooks on a gradient."""
        with torch._C.DisableTorchFunctionSubclass():  # flags of a tensor whose values are on a device are here
            hooked = [t for t in self._leaves if t._backward_hooks or t._post_accumulate_grad_hooks]
            if [t.requires_grad for t in self._leaves] == self._flags and not hooked:
                return
            for name, tensor, requires_grad, hooks in self._surroundings.flags:
                if tensor.requires_grad is not requires_grad:
                    raise StaleWeightError(
                        f"requires_grad of {name!r} was {requires_grad} at compile and is {not requires_grad} now: it "
                        "is another step; compile again"
                    )
                if hook_count(tensor) != hooks:
                    raise StaleWeightError(f"{name!r} has other gradient hooks than at compile; compile again")

    def _check_idle(self) -> None:
        """Raises StaleWeightError for a parameter that has a gradient now, where the captured optimizer found none."""
        for name, tensor in self._idle:
            if tensor.grad is not None:
                raise StaleWeightError(
                    f"{name} had no gradient at compile, so the captured optimizer leaves it alone, and has one now; "
                    "compile again"
                )

    def _is_followed(self, now: Any, before: Any) -> bool:
        """Another layer in the place of one whose tensors nothing else holds: they are read where they hang."""
        if not self._only_reads or not isinstance(now, torch.nn.Module):
            return False
        held = self._surroundings.tensors
        return is_alike(now, before) and all(len(held.get(id(p), ())) < 2 for p in before.parameters())

    def _current(self, name: str, number: Any) -> Any:
        try:
            return number.current()
        except (LookupError, TypeError, AttributeError) as error:
            raise StaleWeightError(f"{name} is no longer a number ({error}); compile again") from error

    def _check_guards(self, found: dict[str, Any], asked: dict[str, Any]) -> None:
        values = {number.name: found[name] for name, number in self._numbers} | asked
        for guard in self._guards:
            if not guard.holds(values):
                raise StaleWeightError(_broken(guard, values))


def _idle(exported: Exported) -> Iterator[tuple[str, torch.Tensor]]:
    """What the captured optimizers hold and do not update: it had no gradient when they looked."""
    updated = {id(exported.states[name].tensor) for name in exported.updates if name in exported.states}
    for optimizer in exported.optimizers:
        groups = [group["params"] for group in optimizer.param_groups]
        if not any(id(tensor) in updated for tensors in groups for tensor in tensors):
            continue  # another function's
        for i, tensors in enumerate(groups):
            for j, tensor in enumerate(tensors):
                if tensor.grad is None and id(tensor) not in updated:
                    yield f"params[{j}] of group {i} of {type(optimizer).__name__}", tensor


def _broken(guard: NumberGuard, values: dict[str, Any]) -> str:
    now = ", ".join(f"{name} = {values[name]!r}" for name in sorted(guard.names))
    where = f"{guard.where}: " if guard.where else ""
    return f"{where}the step was captured for {guard}, but now {now}: it takes another path; compile again"


def _changed(watched: Watched, now: Any) -> str:
    name, _, _, before = watched
    if is_plain(before) and is_plain(now):
        return (
            f"{name} was {short(before)} at compile and is {short(now)} now, and the graph holds what it was; compile "
            "again, or keep it in a tensor"
        )
    if isinstance(before, torch.Tensor):
        return (
            f"{name} is another tensor than at compile, and other parts of the program hold the one of then; change "
            "it in place (copy_, load_state_dict), or compile again"
        )
    return f"{name} is another {type(before).__name__} than at compile; compile again"


def _named(settings: tuple[Any, ...]) -> str:
    return ", ".join(map(str, ("on" if settings[0] else "off", *settings[1:])))


def _mode_call(training: bool) -> str:
    return "train()" if training else "eval()"


def _read(place: Any) -> Any:
    try:
        return place.get()
    except (LookupError, AttributeError):
        return None


def _settings(module: torch.nn.Module) -> list[str]:
    """Attributes of a module of torch's that its forward bakes in: a dropout's p, a norm's eps. (A user's own modules
    may count and log in theirs.)"""
    if type(module).__module__.partition(".")[0] != "torch":
        return []
    names = getattr(type(module), "__constants__", ())
    return [n for n in names if isinstance(vars(module).get(n), (bool, int, float, str, tuple))]


def _reads_training(module: torch.nn.Module) -> bool:
    """Whether the module computes something else in training (dropout, batch norm): its forward names `training`."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names
