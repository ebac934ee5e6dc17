"""Training steps for tests: nets, steps over them, and a comparison of a captured step with PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pfvm
import torch
from pfvm.compiler.capture.export import Exported, capture
from pfvm.runtime.ort import evaluate
from torch import nn

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], Any]


def bits(structure: Any) -> Any:
    """Nested dicts, lists and tuples with each tensor as its dtype, shape and bytes: equal only bit by bit."""

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.dtype, tuple(leaf.shape), leaf.detach().numpy().tobytes()

    return torch.utils._pytree.tree_map(of_leaf, structure)


class Mlp(nn.Module):
    """Linear(8, 16) → ReLU → Linear(16, 4) with its loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> Batch:
        y = self.linear2(torch.relu(self.linear1(x)))
        return {"loss": nn.functional.cross_entropy(y, t), "y": y}


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """The whole step: gradients cleared, forward, backward, optimizer."""

    def train_step(inp: Batch) -> Batch:
        optimizer.zero_grad()
        loss = model(**inp)["loss"]
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train_step


def classifier_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Batch], torch.Tensor]:
    """The same of a module that gives scores; returns the loss itself."""

    def step(inp: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return loss

    return step


def batches(shape: tuple[int, ...] = (5, 8), classes: int = 4, dtype: Any = torch.float32) -> Iterator[Batch]:
    """Endless random batches {"x": floats of `shape`, "t": labels}, the same for every call."""
    generator = torch.Generator().manual_seed(1)
    while True:
        x = torch.randn(*shape, generator=generator, dtype=dtype)
        yield {"x": x, "t": torch.randint(0, classes, shape[:1], generator=generator)}


def twins(make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """The same model and optimizer twice."""
    pairs = []
    for _ in range(2):
        torch.manual_seed(0)
        pairs.append(make())
    return pairs


def trained_twins(
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]], data: Iterator[Batch], device: str
) -> tuple[nn.Module, nn.Module]:
    """The same model after five steps, each from the last one's state: compiled, and PyTorch's own."""
    (model, optimizer), (twin, twin_optimizer) = twins(make)
    step = pfvm.compile(make_step(model, optimizer), next(data), device=device)
    twin_step = make_step(twin, twin_optimizer)
    for _ in range(5):
        batch = next(data)
        step(batch)
        twin_step(batch)
    return model, twin


def state_feeds(exported: Exported) -> dict[str, np.ndarray[Any, Any]]:
    """Today's values of all state of an exported step."""
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for name, state in exported.states.items():
        try:
            tensor = state.place.get() if state.place is not None else state.tensor
        except LookupError:
            tensor = state.tensor
        feeds[name] = np.array((state.tensor if tensor is None else tensor).detach().numpy())
    return feeds | {name: np.asarray(number.current()) for name, number in exported.numbers.items()}


def relative_error(actual: Any, expected: Any) -> float:
    """The largest difference, as a part of the largest expected value.

    Below 1e-2 as a part of that: the gradient of a bias before batch norm is zero, and what is computed is noise.
    """
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(a - e).max() / max(np.abs(e).max(), 1e-2)) if e.size else 0.0


def largest_step_error(
    step: Step, data: Iterator[Batch], steps: int = 3, run: Callable[[ir.Model, Any], Any] = evaluate
) -> float:
    """One step at a time from PyTorch's own state: the largest relative error of results and of new state."""
    exported = capture(step, next(data))
    worst = 0.0
    for _ in range(steps):
        batch = next(data)
        feeds = {name: value.numpy() for name, value in batch.items()}
        results = run(exported.model, {**feeds, **state_feeds(exported)})
        expected = {k: v.detach() for k, v in step(batch).items()}
        worst = max([worst, *(relative_error(results[k], v) for k, v in expected.items())])
        after = state_feeds(exported)
        worst = max([worst, *(relative_error(results[out], after[name]) for name, out in exported.updates.items())])
    return worst
