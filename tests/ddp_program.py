"""One process of tests/test_mesh_ddp.py: PyTorch's own DistributedDataParallel, on the CPU.

`RANK WORLD STORE RESULT`: process RANK of WORLD, which meet at the file STORE, computes its part of each batch in all
CASES; the first one writes to RESULT what they arrived at together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
import mesh_nets  # type: ignore[import-not-found]

STEPS = 3
CASES = [
    *(("mlp", "sgd", "mean", dtype) for dtype in ("float32", "float64")),
    *(("mlp", "sgd", loss, "float64") for loss in ("sum", "ignored rows")),
    ("cnn", "sgd", "mean", "float32"),
    ("transformer", "adam", "mean", "float64"),
]
OWN_WAY = [("mlp", "sgd", "mean", "float64"), ("mlp", "sgd", "ignored rows", "float64")]
"""Also as a program without a thought for the other processes has it: its own batch statistics, its own mean."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "mean": cross_entropy,
    "sum": lambda scores, labels: cross_entropy(scores, labels, reduction="sum"),
    "ignored rows": cross_entropy,
}


def net(name: str, dtype: str) -> torch.nn.Module:
    """The same weights every time, without dropout, whose masks no two programs share."""
    torch.manual_seed(3)
    model = mesh_nets.NETS[name]()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    return model.to(getattr(torch, dtype))


def batches(name: str, loss: str, dtype: str) -> list[mesh_nets.Batch]:
    """A batch a step, whose first half is much easier: one label. Most of that is ignored for the loss of that name."""
    found = []
    for number in range(STEPS):
        batch = mesh_nets.batch(name, getattr(torch, dtype))
        batch["x"], half = batch["x"].roll(number, 0), mesh_nets.BATCH // 2
        batch["t"][:half] = number
        if loss == "ignored rows":
            batch["t"][2:half] = -100
        found.append(batch)
    return found


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of that name."""
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class NormOfAll(torch.nn.Module):
    """Batch normalization by the statistics of all processes: SyncBatchNorm, which PyTorch has for GPUs only."""

    def __init__(self, norm: torch.nn.BatchNorm1d | torch.nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm, axes = self.norm, [0, *range(2, x.dim())]
        count = dist.get_world_size() * x.numel() // x.shape[1]
        mean = all_reduce(x.sum(axes)) / count
        centred = x - mean.view(-1, *[1] * (x.dim() - 2))
        variance = all_reduce((centred**2).sum(axes)) / count
        with torch.no_grad():
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * count / (count - 1), norm.momentum)
            norm.num_batches_tracked += 1
        scale = norm.weight / (variance + norm.eps).sqrt()
        return centred * scale.view(-1, *[1] * (x.dim() - 2)) + norm.bias.view(-1, *[1] * (x.dim() - 2))


def norms_of_all(model: torch.nn.Module) -> torch.nn.Module:
    """Every BatchNorm of the model by the statistics of all."""
    for name, module in model.named_children():
        if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
            setattr(model, name, NormOfAll(module))
        else:
            norms_of_all(module)
    return model


def share(kind: str, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of this process's rows, such that the average over processes, which DDP takes, is that of all rows."""
    total, world = cross_entropy(scores, labels, reduction="sum"), dist.get_world_size()
    if kind == "sum":
        return total * world
    counted = (labels >= 0).sum()
    dist.all_reduce(counted)
    return total * world / counted


def train(name: str, optimizer: str, kind: str, dtype: str, own_way: bool) -> dict[str, Any]:
    """Losses and gradients of each step, and the state at the end."""
    model = net(name, dtype)
    parallel = torch.nn.parallel.DistributedDataParallel(model if own_way else norms_of_all(model))
    steps = optimizer_of(optimizer, model)
    losses, gradients = [], []
    for batch in batches(name, kind, dtype):
        rows = {key: value.chunk(dist.get_world_size())[dist.get_rank()] for key, value in batch.items()}
        steps.zero_grad()
        scores = parallel(rows["x"])
        loss = cross_entropy(scores, rows["t"]) if own_way else share(kind, scores, rows["t"])
        loss.backward()
        gradients.append({key: p.grad.clone() for key, p in _named(model.named_parameters())})
        steps.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean / dist.get_world_size())
    return {"losses": torch.stack(losses), "gradients": gradients, "state": dict(_named(model.state_dict().items()))}


def _named(entries: Any) -> Iterator[tuple[str, Any]]:
    """As the model names them that has BatchNorm itself."""
    return ((key.replace("norm.norm.", "norm."), value) for key, value in entries)


def main(rank: str, world: str, store: str, result: str) -> None:
    """The process's part."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world))
    found = {(*case, False): train(*case, own_way=False) for case in CASES}
    found |= {(*case, True): train(*case, own_way=True) for case in OWN_WAY}
    if rank == "0":
        torch.save(found, result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
