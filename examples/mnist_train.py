"""Train the MNIST model in plain PyTorch and write a checkpoint.

python examples/mnist_train.py --outdir out/mnist
"""

from __future__ import annotations

import argparse
import pathlib

import torch
from mnist_data import Digits, Mlp, load

EPOCHS = 20


def train(digits: Digits, model: Mlp, epochs: int = EPOCHS) -> None:
    """SGD, learning rate 0.1, momentum 0.9, batches of 64.

    On one thread: batches this small gain nothing from more, and lose much on a busy machine.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        total = 0.0
        for batch in digits.train_batches(generator):
            optimizer.zero_grad()
            loss = model(batch["x"], batch["t"])["loss"]
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch["t"])
        print(f"epoch {epoch + 1:2d}  loss {total / len(digits.train_t):.4f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outdir", default="out/mnist", help="folder for checkpoint.pt")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    digits = load(args.data)
    print(f"{digits.source}: {len(digits.train_t)} images to train, {len(digits.eval_t)} to evaluate")
    torch.manual_seed(0)
    model = Mlp()
    train(digits, model, args.epochs)
    folder = pathlib.Path(args.outdir)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "checkpoint.pt")
    print(f"wrote {folder / 'checkpoint.pt'}")


if __name__ == "__main__":
    main()
