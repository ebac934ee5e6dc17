"""Train the MNIST model in plain PyTorch and write a checkpoint.

python examples/mnist_train.py --outdir out/mnist
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from mnist_data import Digits, Mlp, load

EPOCHS = 20

Step = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def make_train_step(model: Mlp) -> Step:
    """The whole step on a batch {"x": [N, 1, 32, 32], "t": [N]}: SGD, learning rate 0.1, momentum 0.9."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = model(**inp)["loss"]
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train_step


def train(digits: Digits, step: Step, epochs: int = EPOCHS, ready: Callable[[Any], Any] = iter) -> None:
    """Epochs of shuffled batches through a step, eager or compiled. `ready`: what gets the batches ready, and loops.

    On one thread: batches this small gain nothing from more, and lose much on a busy machine.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        losses = [step(batch)["loss"].detach() for batch in ready(digits.train_batches(generator))]
        print(f"epoch {epoch + 1:2d}  loss {torch.stack(losses).mean():.4f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", default="out/mnist", help="folder for checkpoint.pt")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    digits = load(args.data)
    print(f"{digits.source}: {len(digits.train_t)} images to train, {len(digits.eval_t)} to evaluate")
    torch.manual_seed(0)
    model = Mlp()
    train(digits, make_train_step(model), args.epochs)
    folder = pathlib.Path(args.outdir)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "checkpoint.pt")
    print(f"wrote {folder / 'checkpoint.pt'}")


if __name__ == "__main__":
    main()
