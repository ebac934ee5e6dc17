"""`make demo`: train, compile the evaluation step, run it on every device, and compare.

Fails (exit 1) when the devices do not count the same right answers, or the accuracy is not above 0.95.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

import torch
from mnist import compile_step
from mnist_data import Digits, Mlp, load
from mnist_infer import Step, count_correct, make_eval_step
from mnist_train import EPOCHS, make_train_step, train
from rich.console import Console
from rich.table import Table

DEVICES = ("torch", "pfvm:cpu", "xla:cpu")
NEEDED_ACCURACY = 0.95


class Row(NamedTuple):
    """What one device did."""

    device: str
    correct: int
    images: int
    milliseconds: float  # median per batch of 125
    artifacts: str


def run(device: str, step: Step, digits: Digits, artifacts: str) -> Row:
    """Count right answers, then time single batches."""
    correct, images = count_correct(step, digits)
    batch = next(digits.eval_batches())
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start)
    return Row(device, correct, images, 1e3 * statistics.median(seconds), artifacts)


def report(rows: list[Row]) -> Table:
    """One row per device."""
    table = Table(title=f"eval_step of the MNIST example, {rows[0].images} digits in batches of 125")
    table.add_column("device")
    for name in ("correct", "accuracy", "latency, ms"):
        table.add_column(name, justify="right")
    table.add_column("artifacts")
    for row in rows:
        accuracy = f"{row.correct / row.images:.4f}"
        table.add_row(row.device, str(row.correct), accuracy, f"{row.milliseconds:.3f}", row.artifacts)
    return table


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", default="out/demo", help="folder for the artifacts")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    folder = pathlib.Path(args.outdir)
    digits = load(args.data)
    print(f"{digits.source}: {len(digits.train_t)} images to train, {len(digits.eval_t)} to evaluate")
    torch.manual_seed(0)
    model = Mlp()
    steps = {}
    for device in DEVICES:  # before training: a compiled step reads the current weights at every call
        artifacts = folder / device.replace(":", "_")
        steps[device] = (compile_step(make_eval_step(model), device, artifacts), artifacts)
    train(digits, make_train_step(model), args.epochs)
    rows = [run(d, step, digits, "" if d == "torch" else str(path)) for d, (step, path) in steps.items()]
    size = sum(weight.numel() for weight in model.parameters())
    print(f"latency: median time of a call with one batch; with {size:,} parameters its overhead dominates")
    Console().print(report(rows))
    if len({row.correct for row in rows}) > 1:
        print("FAILED: the devices do not agree")
        return 1
    if rows[0].correct <= NEEDED_ACCURACY * rows[0].images:
        print(f"FAILED: the accuracy is not above {NEEDED_ACCURACY}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
