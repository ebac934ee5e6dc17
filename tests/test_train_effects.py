"""Promise: nothing that a function does in Python gets lost silently, and a refused capture leaves nothing behind."""

from __future__ import annotations

import collections
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.errors import CaptureError, PythonEffectWarning  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import batches, relative_error  # noqa: E402

O = torch.optim  # noqa: E741
BATCH = next(batches())
GENERATOR = np.random.default_rng(0)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


DRAWS: dict[str, Callable[[], float]] = {
    "python": lambda: random.random(),
    "numpy": lambda: np.random.rand(),
    "own": lambda: float(GENERATOR.random()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_random_number_that_hardly_ever_counts(name: str) -> None:
    """Two traces agree: a layer is dropped once in a million calls."""
    draw = DRAWS[name]
    before = random.getstate(), GENERATOR.bit_generator.state
    with pytest.raises(CaptureError, match=r"test_train_effects\.py:\d+: a random number.*torch\.rand"):
        pfvm.compile(lambda x: x * 0 if draw() < 1e-6 else x, BATCH["x"])
    assert before == (random.getstate(), GENERATOR.bit_generator.state)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.log = nn.Linear(8, 4), 0, {}
        self.history: list[Any] = []

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.calls += 1
        self.log["mean"] = y.mean()
        self.history.append(1)
        return y


def test_what_python_would_change_is_named_and_left_as_it_is() -> None:
    model, count = Counting(), 0

    def run(x: Any) -> Any:
        nonlocal count
        count += 1
        return model(x)

    with pytest.warns(PythonEffectWarning, match=r"effects\.py:\d+: .*'count', 'model.calls', 'model.hi"):
        pfvm.compile(run, BATCH["x"])(BATCH["x"])
    assert (model.calls, model.log, model.history, count) == (0, {}, [], 0)


def test_a_hook_that_a_step_registers_is_named_and_does_not_stay() -> None:
    layer = nn.Linear(8, 4)

    def step(x: Any) -> Any:
        layer.register_forward_hook(lambda *_: None)
        return layer(x)

    with pytest.warns(PythonEffectWarning, match="_forward_hooks"):
        pfvm.compile(step, BATCH["x"])
    assert not layer._forward_hooks


def by_its_points(reads: bool) -> Any:
    """A step that differentiates by its argument, as those for differential equations do; it may read the gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = O.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        x.requires_grad_()
        optimizer.zero_grad()
        u = net(x)
        (slope,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        loss = (slope - u).square().mean()
        loss.backward()
        optimizer.step()
        return (loss, x.grad) if reads else loss

    return step


def test_the_gradient_that_a_step_leaves_on_its_argument_is_named_and_left_out() -> None:
    x, seen = torch.linspace(0, 1, 7)[:, None], torch.linspace(0, 1, 7)[:, None]
    eager = by_its_points(reads=False)
    expected = [eager(seen).item() for _ in range(3)]
    for sample in (x, seen):
        with pytest.warns(PythonEffectWarning, match=r"effects\.py:\d+: the function changes 'x.grad'"):
            compiled = pfvm.compile(by_its_points(reads=False), sample)
        assert [compiled(x).item() for _ in range(3)] == pytest.approx(expected, rel=1e-5)
    assert x.grad is None and not x.requires_grad


def test_a_gradient_of_its_argument_that_a_step_reads_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"effects\.py:\d+: the gradient of input 'x' would be lost; return torch"):
        pfvm.compile(by_its_points(reads=True), torch.ones(2, 1))


def test_an_ordinary_step_warns_of_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 4))
    optimizer = O.Adam(model.parameters())
    scheduler = O.lr_scheduler.StepLR(optimizer, 1)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error", PythonEffectWarning)
        pfvm.compile(step, BATCH)(BATCH)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


HOLDERS: dict[str, tuple[Any, Any]] = {
    "slots": (Slotted, lambda holder: holder.held),
    "set": (lambda o: {o}, lambda holder: next(iter(holder))),
    "deque": (lambda o: collections.deque([o]), lambda holder: holder[0]),
    "tensor's dictionary": (lambda o: {o.param_groups[0]["params"][0]: o}, lambda holder: next(iter(holder.values()))),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_an_optimizer_may_hang_anywhere(name: str) -> None:
    hold, find = HOLDERS[name]

    def make(model: nn.Module) -> Any:
        holder = hold(O.SGD(model.parameters(), lr=0.1, momentum=0.9))

        def step(inp: Any) -> Any:
            loss = F.cross_entropy(model(inp["x"]), inp["t"])
            loss.backward()
            find(holder).step()
            find(holder).zero_grad()
            return loss

        return step

    assert_trains_as_eager(make)


def test_an_optimizer_for_each_parameter_steps_in_backward() -> None:
    def make(model: nn.Module) -> Any:
        optimizers = {p: O.Adam([p]) for p in model.parameters()}

        def update(p: Any) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)

        def step(inp: Any) -> Any:
            loss = F.cross_entropy(model(inp["x"]), inp["t"])
            loss.backward()
            return loss

        return step

    assert_trains_as_eager(make)


def assert_trains_as_eager(make: Callable[[nn.Module], Any]) -> None:
    found = []
    for is_compiled in (True, False):
        torch.manual_seed(0)
        model = net()
        step = make(model)
        run = pfvm.compile(step, (BATCH,)) if is_compiled else step
        for _ in range(2):
            run(BATCH)
        found.append([v.detach() for v in model.parameters()])
    assert max(map(relative_error, *found)) < 2e-5


def test_a_hidden_optimizer_is_refused_and_nothing_stays() -> None:
    model = net()
    optimizer = O.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hidden = weakref.ref(model), weakref.ref(optimizer)

    def step(inp: Any) -> Any:
        loss = F.cross_entropy(hidden[0]()(inp["x"]), inp["t"])
        loss.backward()
        hidden[1]().step()
        return loss

    with pytest.raises(CaptureError, match=r"effects\.py:\d+: an optimizer \(SGD\) makes a step.*hold it"):
        pfvm.compile(step, BATCH)
    assert not optimizer.state
    assert [p.grad for p in model.parameters()] == [None] * 4


def test_anomaly_detection_and_formatted_values_are_refused_by_name() -> None:
    def anomalous(x: Any) -> Any:
        with torch.autograd.set_detect_anomaly(True):
            return x * 2

    with pytest.raises(CaptureError, match=r"effects\.py:\d+: torch\.autograd\.set_detect_anomaly.*leave it out"):
        pfvm.compile(anomalous, BATCH["x"])
    with pytest.raises(CaptureError, match=r"effects\.py:\d+: Python needs the value"):
        pfvm.compile(lambda x: x * len(f"{x.sum():.3f}"), BATCH["x"])
