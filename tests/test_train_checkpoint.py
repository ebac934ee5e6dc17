"""Promise: a run that is stopped, saved, and resumed on another device takes the same next steps."""

from __future__ import annotations

import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import batches, make_step  # noqa: E402

BATCH = next(batches())


class Net(nn.Module):
    """Batch normalization and dropout: buffers and random numbers are part of what is resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear1, self.linear2 = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Any, t: Any) -> Any:
        h = nn.functional.dropout(torch.relu(self.linear1(self.norm(x))), 0.3)
        return {"loss": nn.functional.cross_entropy(self.linear2(h), t)}


class Run:
    """A model with all that a checkpoint holds, and its compiled step."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.compiled = pfvm.compile(make_step(self.model, self.optimizer), BATCH, device=device)

    def steps(self, data: list[Any]) -> list[float]:
        losses = []
        for batch in data:
            losses.append(float(self.compiled(batch)["loss"]))
            self.scheduler.step()
        return losses

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        parts = (self.model, self.optimizer, self.scheduler)
        torch.save([*(part.state_dict() for part in parts), torch.get_rng_state()], file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        *states, generator = torch.load(file)
        for part, state in zip((self.model, self.optimizer, self.scheduler), states):
            part.load_state_dict(state)
        torch.set_rng_state(generator)


@pytest.mark.parametrize(("first", "second"), [("pfvm:cpu", "xla:cpu"), ("xla:cpu", "pfvm:cpu")])
def test_resumed_on_another_device(first: str, second: str) -> None:
    data = [batch for batch, _ in zip(batches(), range(6))]
    whole = Run(first)
    torch.manual_seed(1)
    expected = whole.steps(data)
    stopped = Run(first)
    torch.manual_seed(1)
    assert stopped.steps(data[:3]) == expected[:3]
    file = stopped.save()
    resumed = Run(second)
    torch.manual_seed(99)
    resumed.load(file)
    assert resumed.steps(data[3:]) == pytest.approx(expected[3:], rel=1e-4)
    for (name, mine), theirs in zip(resumed.model.state_dict().items(), whole.model.state_dict().values()):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
