"""Promise: what changes in the program after a step was compiled is followed or refused by name, never overlooked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.errors import StaleWeightError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import batches, relative_error  # noqa: E402

O = torch.optim  # noqa: E741
BATCH = next(batches())


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def usual(model: nn.Module, optimizer: Any) -> Any:
    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return loss

    return step


def set_group(**values: Any) -> Any:
    return lambda model, optimizer: optimizer.param_groups[0].update(values)


Make = Callable[[nn.Module], Any]
PATHS: dict[str, tuple[Make, Any, str]] = {
    "decay": (lambda m: O.AdamW(m.parameters(), weight_decay=0.0), set_group(weight_decay=0.1), "weight_decay = 0.1"),
    "sgd decay": (lambda m: O.SGD(m.parameters()), set_group(weight_decay=0.1), "weight_decay = 0.1"),
    "momentum": (lambda m: O.SGD(m.parameters()), set_group(momentum=0.9), "momentum = 0.9"),
    "rms": (lambda m: O.RMSprop(m.parameters()), set_group(momentum=0.9), "momentum = 0.9"),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_number_that_only_python_asked_for(name: str) -> None:
    make, change, message = PATHS[name]
    model = net()
    optimizer = make(model)
    step = pfvm.compile(usual(model, optimizer), BATCH)
    step(BATCH)
    change(model, optimizer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StaleWeightError, match=f"{message}.*compile again"):
        step(BATCH)
    assert str(before) == str(model.state_dict())


@pytest.mark.parametrize("kind", ["Adam", "Adamax", "NAdam", "Adagrad", "Rprop", "SGD"])
def test_optimizer_state_that_starts_again(kind: str) -> None:
    found = []
    for is_compiled in (True, False):
        torch.manual_seed(0)
        model = net()
        optimizer = getattr(O, kind)(model.parameters(), lr=0.05, **({"momentum": 0.9} if kind == "SGD" else {}))
        step = usual(model, optimizer)
        step = pfvm.compile(step, BATCH) if is_compiled else step
        for index, (batch, _) in enumerate(zip(batches(), range(4))):
            if index == 2 and kind != "Adagrad":  # which makes its state when it is made
                optimizer.state.clear()
            step(batch)
        found.append([v.detach() for v in model.parameters()])
    assert max(map(relative_error, *found)) < 2e-5
