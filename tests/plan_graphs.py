"""The graphs that plans are tested and measured on: 20 captured here and five real models.

Nets are trained on digits for some steps before they are captured, so that weights, moments and scores are those of
use; then `pfvm.export`, then the compiler, as a user does. `graphs()` is what `pfvm bench --plan` reads.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pfvm
import torch
import torch.nn.functional as F
from pfvm.compiler.capture.export import capture
from pfvm.compiler.importer import read_model
from plan_double import in_float64
from plan_nets import Attention, Cnn, Depthwise, ResNet18, Transformer, gru, lstm, mlp
from support import SHARED, inputs_of, recipes
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from train_support import state_feeds

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))
import mnist_data

Feeds = dict[str, np.ndarray]
momentum = functools.partial(SGD, lr=0.01, momentum=0.9)
SMALL: dict[str, Any] = {"size": 16, "steps": 20}


@dataclasses.dataclass(frozen=True)
class Net:
    """A net at one batch size, trained for `steps` batches. optimizer: its training step, else its scores.

    size, channels: of the images, which are digits made smaller or larger.
    """

    make: Callable[[], nn.Module]
    batch: int
    optimizer: Callable[..., Optimizer] | None = None
    size: int = 32
    channels: int = 1
    steps: int | None = None
    counts: bool = False  # what it says is how many are right, not the scores

    @functools.cached_property
    def model(self) -> ir.Model:
        """Captured and compiled."""
        return pfvm.optimize(capture(*self._function(self._trained)).model)

    @functools.cached_property
    def expected(self) -> Feeds:
        """What PyTorch gives in float64: outputs, and the state after a step under its output's name."""
        return self._in_torch(0, torch.float64)

    @functools.cached_property
    def in_float32(self) -> Feeds:
        """The same in float32, to see which values are rounding alone."""
        return self._in_torch(0, torch.float32)

    def scores(self, number: int) -> np.ndarray:
        """Those of another batch, in float64."""
        return self._in_torch(number, torch.float64)["y"]

    @property
    def feeds(self) -> Feeds:
        """Digits that it has not been trained on."""
        return self.more(0)

    def more(self, number: int) -> Feeds:
        """Another batch of them."""
        batch = {name: x.numpy() for name, x in self._batch(number, held=True).items()}
        return batch if self.counts or self.optimizer is not None else {"x": batch["x"]}

    @functools.cached_property
    def _trained(self) -> tuple[nn.Module, Optimizer | None]:
        torch.manual_seed(0)
        net = self.make()
        optimizer = (self.optimizer or functools.partial(Adam, lr=2e-3))(net.parameters())
        steps = 20 if self.optimizer else 200
        for i in range(steps if self.steps is None else self.steps):
            _step(net, optimizer, self._batch(i))
        return (net, optimizer) if self.optimizer else (net.eval(), None)

    def _in_torch(self, number: int, dtype: torch.dtype) -> Feeds:
        net, optimizer = copy.deepcopy(self._trained)
        net.to(dtype)
        for state in optimizer.state.values() if optimizer is not None else ():
            state.update({k: v.to(dtype) for k, v in state.items() if k != "step" and v is not None})
        function, _ = self._function((net, optimizer))
        sample = {k: torch.as_tensor(x) for k, x in self.more(number).items()}
        sample = {k: x.to(dtype) if x.is_floating_point() else x for k, x in sample.items()}
        exported = capture(function, sample)
        with torch.set_grad_enabled(optimizer is not None):
            results = {k: np.asarray(value.detach()) for k, value in function(sample).items()}
        after = state_feeds(exported)
        return results | {output: after[name] for name, output in exported.updates.items()}

    def _function(self, trained: tuple[nn.Module, Optimizer | None]) -> tuple[Callable[..., Any], dict[str, Any]]:
        net, optimizer = trained
        batch = self._batch(0, held=True)
        if optimizer is not None:
            return (lambda inp: {"loss": _step(net, optimizer, inp)}), batch
        if self.counts:
            return (lambda inp: {"correct": (net(inp["x"]).argmax(1) == inp["t"]).sum()}), batch
        return (lambda inp: {"y": net(inp["x"])}), {"x": batch["x"]}

    def _batch(self, number: int, held: bool = False) -> dict[str, torch.Tensor]:
        x, t = _digits(held)
        at = (torch.arange(self.batch) + number * self.batch) % len(t)
        x = x[at] if self.size == mnist_data.SIZE else F.interpolate(x[at], size=(self.size, self.size), mode="area")
        return {"x": x.expand(-1, self.channels, -1, -1).contiguous(), "t": t[at]}


@functools.cache
def _digits(held: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels in a mixed order."""
    digits = mnist_data.load()
    x, t = (digits.eval_x, digits.eval_t) if held else (digits.train_x, digits.train_t)
    order = torch.randperm(len(t), generator=torch.Generator().manual_seed(0))
    return x[order], t[order]


def _step(net: nn.Module, optimizer: Optimizer, inp: dict[str, torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(inp["x"]), inp["t"])
    loss.backward()
    optimizer.step()
    return loss


@dataclasses.dataclass(frozen=True)
class Real:
    """One of the models of ../shared/models. recipe: of its inputs, the first one's number is 0."""

    file: str
    recipe: int = 0
    optimizer: None = None

    @property
    def path(self) -> pathlib.Path:
        """Its file."""
        return SHARED / "models" / self.file

    @functools.cached_property
    def model(self) -> ir.Model:
        """Compiled."""
        return pfvm.optimize(read_model(self.path))

    @functools.cached_property
    def expected(self) -> Feeds:
        """What the original file gives in float64."""
        return in_float64(read_model(self.path), self.feeds)

    @property
    def feeds(self) -> Feeds:
        """By its recipe."""
        return inputs_of(self.path, recipes(self.path)[self.recipe])


def _net(make: Callable[..., nn.Module], *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    return functools.partial(make, *arguments, **options)


CAPTURED = {
    "mlp 64": Net(_net(mlp, 32, (64,)), 64),
    "mlp 125, wide": Net(_net(mlp, 32, (512, 512)), 125),
    "mlp 250, deep": Net(_net(mlp, 32, (128, 96, 100, 64), nn.GELU), 250),
    "mnist eval": Net(_net(mlp, 32, (256,)), 125, counts=True),
    "cnn": Net(_net(Cnn, 32, 16), 64),
    "resnet18": Net(ResNet18, 8, size=64, channels=3, steps=150),
    "transformer block": Net(_net(Transformer, 32, 64, 4), 32),
    "masked attention": Net(_net(Attention, 32, 48, 3), 32),
    "depthwise": Net(_net(Depthwise, 16), 32),
    "lstm": Net(_net(lstm, 16, 64), 64, size=16),
    "gru": Net(_net(gru, 16, 48), 64, size=16),
    "mnist step": Net(_net(mlp, 32, (256,)), 64, functools.partial(SGD, lr=0.1, momentum=0.9)),
    "mlp step, sgd": Net(_net(mlp, 32, (128, 64)), 125, functools.partial(SGD, lr=0.05)),
    "mlp step, adam": Net(_net(mlp, 32, (200, 100), nn.GELU), 250, functools.partial(Adam, lr=1e-3)),
    "mlp step, adamw": Net(_net(mlp, 32, (512, 256), nn.SiLU), 64, functools.partial(AdamW, lr=1e-3)),
    "cnn step": Net(_net(Cnn, 32, 16), 64, momentum),
    "resnet18 step": Net(ResNet18, 8, momentum, size=64, channels=3, steps=5),
    "transformer step": Net(_net(Transformer, 32, 64, 4), 32, functools.partial(AdamW, lr=1e-3)),
    "attention step": Net(_net(Attention, 32, 48, 3), 32, functools.partial(Adam, lr=1e-3)),
    "depthwise step": Net(_net(Depthwise, 16), 32, functools.partial(SGD, lr=0.05)),
}
REAL = {
    "magika": Real("magika--standard_v3_3.onnx"),
    "basic-pitch": Real("basic-pitch--nmp.onnx"),
    "ppocr det": Real("rapidocr-onnxruntime--ch_PP-OCRv4_det_infer.onnx"),
    "ppocr cls": Real("rapidocr-onnxruntime--ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "swift-f0": Real("swift-f0--swift_f0.onnx"),
}
# The same kinds, small enough for every run of the tests.
SMALL_ONES = {
    "mlp": Net(_net(mlp, 16, (24,)), 20, **SMALL),
    "mlp step": Net(_net(mlp, 16, (24,)), 20, functools.partial(Adam, lr=1e-3), **SMALL),
    "cnn step": Net(_net(Cnn, 16, 6), 12, momentum, **SMALL),
    "attention step": Net(_net(Attention, 16, 16, 2), 3, functools.partial(AdamW, lr=1e-3), **SMALL),
}
GRAPHS: dict[str, Net | Real] = {**CAPTURED, **REAL}


def shapes(graph: Net | Real) -> dict[str, tuple[int, ...]]:
    """Of the inputs."""
    return {name: np.shape(value) for name, value in graph.feeds.items()}


def graphs() -> dict[str, Callable[[], tuple[ir.Model, dict[str, tuple[int, ...]]]]]:
    """For `pfvm bench --plan`: model and shapes by name. What weights are does not matter to a plan."""

    def make(graph: Net | Real) -> tuple[ir.Model, dict[str, tuple[int, ...]]]:
        untrained = dataclasses.replace(graph, steps=1) if isinstance(graph, Net) else graph
        return untrained.model, shapes(untrained)

    return {name: functools.partial(make, graph) for name, graph in GRAPHS.items()}
