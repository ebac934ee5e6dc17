"""A small convolutional network with batch normalization and Adam, trained through a compiled step and through PyTorch.

python examples/cnn.py --device xla:cpu

5,000 digits that ship in a package (see mnist_data.py), halved to 16×16. Prints the accuracy of both on the fifth that
was kept for evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pfvm
import torch
import torch.nn.functional as F
from mnist_data import Digits, load
from torch import nn

BATCH, EVAL_BATCH = 64, 250
Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], Batch]


class Cnn(nn.Module):
    """Twice 3×3 convolution → batch normalization → ReLU → pool, then one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.conv2, self.norm2 = nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.head = nn.Linear(24 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [N, 10] of images [N, 1, 16, 16]."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.flatten(1))


def make_train_step(model: Cnn, optimizer: torch.optim.Optimizer) -> Step:
    """One step on {"x": [N, 1, 16, 16], "t": [N]}."""

    def train_step(inp: Batch) -> Batch:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train_step


def make_eval_step(model: Cnn) -> Step:
    """Counts right answers of a batch."""
    return lambda inp: {"correct": (model(inp["x"]).argmax(1) == inp["t"]).sum()}


def sample(batch: int) -> Batch:
    """Inputs of the right shapes."""
    return {"x": torch.zeros(batch, 1, 16, 16), "t": torch.zeros(batch, dtype=torch.int64)}


def run(device: str, digits: Digits, epochs: int) -> float:
    """Trains a new network on a device ("torch": eagerly). Returns its accuracy."""
    torch.manual_seed(0)
    model = Cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = epochs * (len(digits.train_t) // BATCH)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps + 1)
    train_step, eval_step = make_train_step(model, optimizer), make_eval_step(model)
    if device != "torch":
        train_step = pfvm.compile(train_step, sample(BATCH), device=device)
        model.eval()  # batch normalization in evaluation is another graph
        eval_step = pfvm.compile(eval_step, sample(EVAL_BATCH), device=device)
        model.train()
    x, eval_x = F.avg_pool2d(digits.train_x, 2), F.avg_pool2d(digits.eval_x, 2)
    order = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        losses = []
        for rows in torch.randperm(len(x), generator=order).split(BATCH)[: steps // epochs]:
            losses.append(train_step({"x": x[rows], "t": digits.train_t[rows]})["loss"].detach())
            scheduler.step()
        print(f"{device:10s} epoch {epoch + 1}  loss {torch.stack(losses).mean():.4f}")
    model.eval()
    batches = zip(eval_x.split(EVAL_BATCH), digits.eval_t.split(EVAL_BATCH))
    with torch.no_grad():
        correct = sum(int(eval_step({"x": x, "t": t})["correct"]) for x, t in batches if len(t) == EVAL_BATCH)
    return correct / (len(eval_x) // EVAL_BATCH * EVAL_BATCH)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="pfvm:cpu, xla:cpu, …")
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    digits = load()
    for device in ("torch", args.device):
        print(f"{device}: accuracy {run(device, digits, args.epochs):.4f}")


if __name__ == "__main__":
    main()
