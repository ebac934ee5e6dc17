"""options={"backprop": True}: a forward function becomes a training step, with the inputs of the older exporter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pfvm.errors import OptionError

from .names import refuse, warn
from .tensor_names import SEPARATOR, get_optimizer_name

LEARNING_RATE = "mncore_learning_rate"
GLOBAL_STEP = "mncore_global_step"
GRAD_SCALE = "mncore_grad_scale_factor"

Step = Callable[[dict[str, Any]], Any]


def with_backward(function: Step, optimizers: Sequence[torch.optim.Optimizer]) -> Step:
    """The function, then backward of its output "loss" (its only one, if there is one) and the optimizers' steps."""
    if not optimizers:
        raise OptionError("options={'backprop': True} needs optimizers=[…]: their steps are added to the function")

    @functools.wraps(function, updated=())
    def train_step(inputs: dict[str, Any]) -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        outputs = function(inputs)
        loss = next(iter(outputs.values())) if len(outputs) == 1 else outputs.get("loss")
        if loss is None:
            raise OptionError(f"backprop: the function returns {', '.join(outputs)}; name one of them 'loss'")
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return outputs

    return train_step


def take_extra_inputs(inputs: Mapping[str, Any], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """The inputs without those of the optimizers: a learning rate goes to its group, a step number nowhere.

    Raises NotBuiltError for a gradient scale other than 1, OptionError for an unknown optimizer or group.
    """
    by_name = {get_optimizer_name(optimizer): optimizer for optimizer in optimizers}
    rest: dict[str, Any] = {}
    for name, value in inputs.items():
        owner, _, last = name.rpartition(SEPARATOR)
        if name == GRAD_SCALE:
            if float(value) != 1:
                raise refuse("input", GRAD_SCALE)
        elif last == GLOBAL_STEP:
            if int(value) == 0:  # once is enough
                warn("input", GLOBAL_STEP)
        elif last == LEARNING_RATE:
            optimizer_name, _, group = owner.rpartition(SEPARATOR)
            optimizer = by_name.get(optimizer_name)
            if optimizer is None or not group.isdigit() or int(group) >= len(optimizer.param_groups):
                raise OptionError(f"input {name!r}: no optimizer and group of this function are named {owner!r}")
            optimizer.param_groups[int(group)]["lr"] = float(value)
        else:
            rest[name] = value
    return rest
