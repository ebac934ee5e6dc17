"""pfvm behind torch.compile: an ordinary PyTorch training loop, its forward and backward compiled by pfvm.

python examples/torch_backend.py --device xla:cpu

Trains twice from the same weights, eagerly and compiled, and prints both losses.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


def train(model: nn.Module, call: nn.Module, steps: int = 40) -> list[float]:
    """The losses of regression steps; `call` is the model, or what torch.compile made of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 8, generator=generator)
        loss = nn.functional.mse_loss(call(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:cpu", help="pfvm:cpu, xla:cpu, …")
    args = parser.parse_args()
    runs = {}
    for name in ("eager", args.device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
        call = model if name == "eager" else torch.compile(model, backend="pfvm", options={"device": args.device})
        runs[name] = train(model, call)
        print(f"{name}: loss {runs[name][0]:.4f} → {runs[name][-1]:.4f}")
    assert max(abs(a - b) for a, b in zip(*runs.values())) < 1e-3, "both train the same"


if __name__ == "__main__":
    main()
