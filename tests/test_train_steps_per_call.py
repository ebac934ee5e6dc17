"""Promise: with steps_per_call=K one call is K calls of the step: same losses, masks, state, and numbers read again."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import CaptureError, InputError, OptionError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, make_step, twins  # noqa: E402

DEVICES = ["pfvm:cpu", "xla:cpu"]
BATCH = next(batches())
K = 4


def stacked(count: int = K, skip: int = 0) -> tuple[list[Any], Any]:
    """`count` batches, and the same as one."""
    data = batches()
    given = [next(data) for _ in range(skip + count)][skip:]
    return given, {name: torch.stack([batch[name] for batch in given]) for name in given[0]}


class Noisy(Mlp):
    """With dropout and batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Any, t: Any) -> Any:
        return super().forward(nn.functional.dropout(self.norm(x), 0.4), t)


def make(kind: Any, **options: Any) -> Any:
    def both() -> Any:
        model = Noisy()
        return model, kind(model.parameters(), lr=0.05, **options)

    return both


OPTIMIZERS = {
    "sgd": make(torch.optim.SGD, momentum=0.9),
    "dampening": make(torch.optim.SGD, momentum=0.9, dampening=0.5),
    "adamw": make(torch.optim.AdamW),
    "nadam": make(torch.optim.NAdam),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("both", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_one_call_is_k_calls(device: str, both: Any) -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(both)
    one = pfvm.compile(make_step(model, optimizer), BATCH, device=device)
    many = pfvm.compile(make_step(twin, twin_optimizer), BATCH, device=device, steps_per_call=K)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, twin_optimizer)]
    for call in range(2):
        given, together = stacked(skip=call * K)
        torch.manual_seed(call)
        expected = torch.stack([one(batch)["loss"] for batch in given])
        torch.manual_seed(call)
        torch.testing.assert_close(many(together)["loss"], expected, rtol=0, atol=0)
        for scheduler in schedulers:
            scheduler.step()
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values()):
        torch.testing.assert_close(b, a, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}")
    for mine, theirs in zip(optimizer.state_dict()["state"].values(), twin_optimizer.state_dict()["state"].values()):
        for key, value in mine.items():
            torch.testing.assert_close(theirs[key], value, rtol=0, atol=0)


def test_a_left_over_gradient_counts_once() -> None:
    def step_of(model: Any, optimizer: Any) -> Any:
        def step(inp: Any) -> Any:
            loss = model(**inp)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    (model, optimizer), (twin, twin_optimizer) = twins(lambda: _sgd(Mlp()))
    for each in (model, twin):
        each(**BATCH)["loss"].backward()
    many, eager = pfvm.compile(step_of(model, optimizer), BATCH, steps_per_call=K), step_of(twin, twin_optimizer)
    given, together = stacked()
    torch.testing.assert_close(many(together), torch.stack([eager(b).detach() for b in given]), rtol=1e-5, atol=1e-6)
    assert model.linear1.weight.grad is None
    torch.testing.assert_close(model.linear1.weight, twin.linear1.weight)


def _sgd(model: Any) -> Any:
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_state_goes_from_one_compiled_step_to_the_other() -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(lambda: _sgd(Mlp()))
    step = make_step(model, optimizer)
    one, many = pfvm.compile(step, BATCH), pfvm.compile(step, BATCH, steps_per_call=K)
    eager = make_step(twin, twin_optimizer)
    given, together = stacked(K + 1)
    many({name: value[:K] for name, value in together.items()})
    one(given[K])
    for batch in given:
        eager(batch)
    torch.testing.assert_close(model.linear1.weight, twin.linear1.weight)


def test_what_does_not_fit_is_a_named_error() -> None:
    model, optimizer = _sgd(Mlp())
    step = make_step(model, optimizer)
    for steps in (0, True, 2.5):
        with pytest.raises(OptionError, match="steps_per_call: expected an integer of at least 1"):
            pfvm.compile(step, BATCH, steps_per_call=steps)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no training step"):
        pfvm.compile(lambda inp: model(**inp), BATCH, steps_per_call=2)
    many = pfvm.compile(step, BATCH, steps_per_call=K)
    with pytest.raises(InputError, match=r"'x'.*\[4, ?5, ?8\]"):
        many(BATCH)


class Branching(torch.optim.SGD):
    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["count"] = state.get("count", 0) + 1
            p.sub_(p.grad if state["count"] > 2 else p.grad / 2)


def test_a_path_that_follows_from_the_steps_own_count_is_refused() -> None:
    model = Mlp()
    step = make_step(model, Branching(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match="several steps in one call may take several paths"):
        pfvm.compile(step, BATCH, steps_per_call=2)
