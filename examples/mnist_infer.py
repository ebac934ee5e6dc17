"""Evaluate the checkpoint of mnist_train.py in plain PyTorch.

python examples/mnist_infer.py --outdir out/mnist
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable

import torch
from mnist_data import Digits, Mlp, load

Step = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def make_eval_step(model: Mlp) -> Step:
    """The step that counts right answers in a batch {"x": [N, 1, 32, 32], "t": [N]}."""

    def eval_step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        y = model.classify(inp["x"])
        return {"correct": (y.max(1)[1] == inp["t"]).sum()}

    return eval_step


def count_correct(step: Step, digits: Digits) -> tuple[int, int]:
    """(right answers, images) over the evaluation batches."""
    correct = images = 0
    with torch.no_grad():
        for batch in digits.eval_batches():
            correct += int(step(batch)["correct"])
            images += len(batch["t"])
    return correct, images


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", default="out/mnist", help="folder that holds checkpoint.pt")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    args = parser.parse_args()
    model = Mlp()
    model.load_state_dict(torch.load(pathlib.Path(args.outdir) / "checkpoint.pt"))
    model.eval()
    correct, images = count_correct(make_eval_step(model), load(args.data))
    print(f"{correct} of {images} right, accuracy {correct / images:.4f}")


if __name__ == "__main__":
    main()
