"""Indices of a training step are judged before the step uses up its state, where they follow from the call's inputs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")
torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import InputError  # noqa: E402
from torch import nn  # noqa: E402


class Walk(nn.Module):
    """Reads its table at a place that is state, and moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 4))
        self.place = nn.Buffer(torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Any, t: Any) -> Any:
        rows = self.table[self.place % 7]
        self.place += 1
        return nn.functional.cross_entropy(x * rows, t)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Any, t: Any) -> Any:
        return nn.functional.cross_entropy(self.head(x), t)


def compiled(model: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any, t: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x, t)
        loss.backward()
        optimizer.step()
        return loss

    return pfvm.compile(step, (torch.ones(2, 4), torch.tensor([0, 1])), device="xla:cpu", **options)


@pytest.mark.parametrize("steps", [None, 3])
def test_targets_are_judged_before_the_step(steps: int | None) -> None:
    model = Classifier()
    step = compiled(model, steps_per_call=steps)
    x, good, bad = torch.ones(2, 4), torch.tensor([0, 1]), torch.tensor([0, 7])
    ignored = torch.tensor([3, -100])
    if steps is not None:
        x = x.expand(steps, 2, 4)
        good, bad, ignored = good.expand(steps, 2), torch.stack([good, bad, good]), ignored.expand(steps, 2)
    step(x, good)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match="the index 7 is out of range"):
        step(x, bad)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    step(x, ignored)
    (program,) = step.executable.hlo()
    (results,) = [line.partition("->")[2] for line in program.splitlines() if "entry_computation_layout" in line]
    assert "s64[2]" not in results  # no finding is left to the program


def test_an_index_that_is_state_is_judged_by_the_step() -> None:
    model = Walk()
    step = compiled(model)
    for _ in range(3):
        step(torch.ones(2, 4), torch.tensor([0, 1]))
    before = model.table.detach().clone()
    with pytest.raises(InputError, match="the index 3 is out of range"):
        step(torch.ones(2, 4), torch.tensor([0, 1]))
    assert torch.equal(model.table.detach(), before) and int(model.place) == 3
