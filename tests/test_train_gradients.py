"""Promise: gradients are where a program looks for them after a compiled call, or None; never those of another step."""

from __future__ import annotations

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


def step_of(model: nn.Module, clear: Callable[[], Any], *after: Callable[[], Any]) -> Any:
    def step(inp: Any) -> Any:
        clear()
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        for call in after:
            call()
        return loss

    return step


@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
@pytest.mark.parametrize("to_none", [True, False])
def test_an_optimizer_outside_finds_the_gradients_of_this_call(device: str, to_none: bool) -> None:
    found = []
    for is_compiled in (True, False):
        torch.manual_seed(0)
        model = net()
        inside, outside = O.SGD(model[0].parameters(), lr=0.1), O.Adam(model[2].parameters(), lr=0.1)
        step = step_of(model, lambda m=model: m.zero_grad(set_to_none=to_none), inside.step)
        step = pfvm.compile(step, BATCH, device=device) if is_compiled else step
        for batch, _ in zip(batches(), range(3)):
            step(batch)
            outside.step()
        found.append([v.detach() for v in model.parameters()])
    assert max(map(relative_error, *found)) < 2e-5


def test_a_gradient_that_an_optimizer_used_up_is_none_not_an_old_one() -> None:
    model = net()
    optimizer = O.SGD(model.parameters(), lr=0.1)
    eager = step_of(model, optimizer.zero_grad, optimizer.step)
    eager(BATCH)
    step = pfvm.compile(eager, BATCH)
    for _ in range(2):
        step(BATCH)
        assert [p.grad for p in model.parameters()] == [None] * 4
        eager(BATCH)


def update_of(optimizer: Any) -> Callable[[], Any]:
    """The optimizer's step alone, on gradients from outside."""

    def update() -> Any:
        optimizer.step()
        return torch.zeros(())

    return update


def test_an_update_needs_the_gradients_that_it_was_compiled_with() -> None:
    model = net()
    optimizer = O.Adam(model.parameters())

    model(BATCH["x"]).sum().backward()
    compiled = pfvm.compile(update_of(optimizer), ())
    compiled()
    optimizer.zero_grad()
    with pytest.raises(StaleWeightError, match=r"grad' was there at compile and is None now.*call backward"):
        compiled()
    model(BATCH["x"]).sum().backward()
    compiled()


def test_a_parameter_without_a_gradient_at_compile_is_not_left_out_silently_later() -> None:
    model = net()
    optimizer = O.Adam(model.parameters())

    model[0](BATCH["x"]).sum().backward()
    compiled = pfvm.compile(update_of(optimizer), ())
    compiled()
    model(BATCH["x"]).sum().backward()
    before = model[2].weight.clone()
    with pytest.raises(
        StaleWeightError, match=r"params\[2\] of group 0 of Adam had no gradient at compile.*compile again"
    ):
        compiled()
    assert torch.equal(model[2].weight, before)


FLAGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "frozen": (lambda m: m[0].requires_grad_(False), r"requires_grad of 'model\.0\.weight' was True at compile"),
    "hook": (lambda m: m[2].weight.register_hook(lambda g: g * 2), r"'model\.2\.weight' has other gradient hooks"),
    "late hook": (
        lambda m: m[2].bias.register_post_accumulate_grad_hook(lambda p: None),
        r"'model\.2\.bias' has other gradient hooks",
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_what_backward_does_is_refused_once_it_changes(name: str) -> None:
    change, message = FLAGS[name]
    model = net()
    optimizer = O.SGD(model.parameters(), lr=0.1)
    step = pfvm.compile(step_of(model, optimizer.zero_grad, optimizer.step), BATCH)
    infer = pfvm.compile(lambda x: model(x), BATCH["x"])
    step(BATCH)
    change(model)
    with pytest.raises(StaleWeightError, match=rf"{message}.*compile again"):
        step(BATCH)
    infer(BATCH["x"])  # which has no backward


def test_a_step_may_freeze_and_thaw() -> None:
    """As a GAN's does with its judge."""
    model = net()
    optimizer = O.SGD(model[2].parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        model.requires_grad_(True)
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model[0].requires_grad_(False)
        return loss

    compiled = pfvm.compile(step, BATCH)
    compiled(BATCH)
    step(BATCH)
    compiled(BATCH)
