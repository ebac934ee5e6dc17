"""Nets and training steps for the tests of meshes, small, with names that rules can match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BATCH = 16
Batch = dict[str, torch.Tensor]


class Mlp(torch.nn.Module):
    """Two layers with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = torch.nn.Linear(8, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.drop = torch.nn.Dropout(0.3)
        self.linear2 = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.drop(self.norm(self.linear1(x)).relu()))


class Cnn(torch.nn.Module):
    """Convolutions with BatchNorm, a pool and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, stride=2)
        self.linear = torch.nn.Linear(8 * 3 * 3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(self.norm(self.conv1(x)).relu(), 2, 1)
        return self.linear(self.conv2(x).relu().flatten(1))


class Transformer(torch.nn.Module):
    """Tokens, one block of attention and one of dense layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 16)
        self.block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(x)).mean(1))


NETS: dict[str, Callable[[], torch.nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}
RULES = {
    "mlp": ["linear1.weight=model,None", "linear2.weight=None,model"],
    "cnn": ["conv*.weight=model", "linear.weight=None,model"],
    "transformer": ["*linear*.weight=model,None", "*.in_proj_weight=None,model"],
}


def batch(name: str, dtype: torch.dtype = torch.float64, rows: int = BATCH) -> Batch:
    """The same batch every time."""
    source = torch.Generator().manual_seed(7)
    shapes = {"mlp": (rows, 8), "cnn": (rows, 3, 8, 8)}
    if name == "transformer":
        x = torch.randint(11, (rows, 6), generator=source)
    else:
        x = torch.randn(shapes[name], generator=source, dtype=dtype)
    return {"x": x, "t": torch.randint(4, (rows,), generator=source)}


def make_step(
    name: str, optimizer: str = "adam", dtype: torch.dtype = torch.float64
) -> tuple[torch.nn.Module, Callable[[Batch], dict[str, Any]]]:
    """A net with a training step, both the same every time."""
    torch.manual_seed(3)
    model = NETS[name]().to(dtype)
    make = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    rest = {"lr": 0.05, "momentum": 0.9} if optimizer == "sgd" else {"lr": 0.01}
    steps = make(model.parameters(), **rest)

    def step(inputs: Batch) -> dict[str, Any]:
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs["x"]), inputs["t"])
        loss.backward()
        steps.step()
        return {"loss": loss}

    return model, step
