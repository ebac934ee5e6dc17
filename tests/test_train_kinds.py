"""Promise: forms of layers, losses and helpers of torch that are easily forgotten train as they do in PyTorch."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

from .train_support import batches, largest_step_error, make_step, relative_error  # noqa: E402


class Net(nn.Module):
    """Layers in a row; a loss of four fixed mixtures of all that comes out, so that every gradient counts."""

    def __init__(self, body: nn.Module, loss: Any = F.cross_entropy) -> None:
        super().__init__()
        self.body, self.loss = body, loss

    def forward(self, x: Any, t: Any) -> Any:
        y = self.body(x).flatten(1)
        mixtures = torch.cos(torch.arange(y.shape[1] * 4, dtype=y.dtype).view(-1, 4) * 1.7)
        return {"loss": self.loss(y @ mixtures, t)}


def error(model: nn.Module, shape: tuple[int, ...], steps: int = 2) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return largest_step_error(make_step(model, optimizer), batches(shape), steps=steps)


class Call(nn.Module):
    """A convolution or linear layer, then any function."""

    def __init__(self, layer: nn.Module, function: Any) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer(x))


LAYERS = {
    "average_of_all_batches": lambda: nn.Sequential(nn.Conv1d(3, 4, 3, bias=False), nn.BatchNorm1d(4, momentum=None)),
    "channels_last": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)).to(
        memory_format=torch.channels_last
    ),
    "uneven_maximum": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d((4, 3))),
    "ranks": lambda: Call(nn.Conv1d(3, 4, 3), lambda y: y.median(-1).values + y.kthvalue(2, -1).values),
    "distances": lambda: Call(
        nn.Conv1d(3, 4, 3), lambda y: torch.cat([torch.cdist(y, 2 * y.flip(1), p) for p in P], -1)
    ),
}
P = (2.0, 1.0, 3.0, math.inf)


@pytest.mark.parametrize("make", LAYERS.values(), ids=list(LAYERS))
def test_layers(make: Any) -> None:
    torch.manual_seed(0)
    shape = (3, 3, 9) if "conv1d" in repr(make()).lower() else (3, 3, 9, 7)
    assert error(Net(make()), shape) < 2e-5


def _hot(y: Any, t: Any) -> Any:
    return F.one_hot(t, 4).to(y.dtype)


def _several_labels(t: Any) -> Any:
    return torch.stack([t, (t + 1) % 4, -torch.ones_like(t), t], 1)


LOSSES = {
    "gaussian": lambda y, t: F.gaussian_nll_loss(y, _hot(y, t), y.exp()),
    "gaussian_of_one_variance": lambda y, t: F.gaussian_nll_loss(y, _hot(y, t), y[:, 0].exp(), full=True),
    "multi_margin": lambda y, t: F.multi_margin_loss(y, t),
    "multi_margin_weighted": lambda y, t: F.multi_margin_loss(y, t, p=2, margin=0.5, weight=torch.arange(1.0, 5.0)),
    "multilabel_margin": lambda y, t: F.multilabel_margin_loss(y, _several_labels(t)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_losses(loss: Any) -> None:
    torch.manual_seed(0)
    assert error(Net(nn.Linear(8, 4), loss), (5, 8)) < 2e-5


def test_a_negative_variance_gives_nan() -> None:
    loss = pfvm.compile(
        lambda inp: F.gaussian_nll_loss(inp["x"], inp["x"], inp["v"]), {"x": torch.ones(3), "v": torch.ones(3)}
    )
    assert loss({"x": torch.ones(3), "v": torch.ones(3)}).item() == 0
    assert math.isnan(loss({"x": torch.ones(3), "v": torch.tensor([1.0, -1.0, 1.0])}).item())


def test_embeddings_are_kept_within_a_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 5, max_norm=1.0), nn.Flatten(), nn.Linear(15, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = model(inp["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    data = ({"x": torch.tensor([[i, 2, 5], [7, 5, i]])} for i in itertools.count())
    assert largest_step_error(step, data) < 2e-5


@pytest.mark.parametrize(
    ("layer", "optimizer"),
    [
        (lambda: nn.Conv2d(3, 1, 1), torch.optim.AdamW),
        (lambda: nn.Conv2d(3, 1, 1, bias=False), lambda p: torch.optim.Adam(p, foreach=False)),
        (lambda: nn.ConvTranspose2d(1, 3, 1), torch.optim.NAdam),
        (lambda: nn.Conv2d(3, 1, 1), torch.optim.Adamax),
        (lambda: nn.Conv2d(3, 1, 1), lambda p: torch.optim.RMSprop(p, centered=True)),
    ],
    ids=["adamw", "adam", "nadam", "adamax", "rmsprop"],
)
def test_weights_of_one_channel(layer: Any, optimizer: Any) -> None:
    """Their gradients have other strides than they, and averages of both are taken."""
    torch.manual_seed(0)
    body = layer()
    model = Net(body)
    step = make_step(model, optimizer(model.parameters()))
    assert largest_step_error(step, batches((4, body.in_channels, 4, 5)), steps=2) < 2e-5


@pytest.mark.parametrize("options", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}, {"use_buffers": True}])
def test_averaged_models(options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    average = AveragedModel(model, **options)
    twins = (model, average), copy.deepcopy((model, average))

    def make(model: Any, average: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(inp: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inp["x"]), inp["t"])
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            return loss

        return step

    data = list(itertools.islice(batches(), 3))
    step, twin = pfvm.compile(make(*twins[0]), data[0]), make(*twins[1])
    for batch in data:
        step(batch)
        twin(batch)
    states = [pair[1].state_dict().values() for pair in twins]
    assert max(relative_error(a.double(), e.double()) for a, e in zip(*states)) < 2e-5


def _in_place(a: Any, b: Any) -> Any:
    torch._foreach_add_(a, b, alpha=0.5)
    torch._foreach_lerp_(a, b, 0.3)
    torch._foreach_zero_(a[:1])
    torch._foreach_copy_(a[1:], b[1:])
    torch._foreach_addcdiv_(a, b, b, value=-0.1)
    return a


LISTS = {
    "in_place": _in_place,
    "arithmetic": lambda a, b: [*torch._foreach_mul(a, b), *torch._foreach_div(a, [1.0, 2.0]), *torch._foreach_sqrt(b)],
    "three": lambda a, b: [*torch._foreach_addcmul(a, a, b, [0.1, 0.2]), *torch._foreach_addcdiv(a, a, b, value=0.3)],
    "norms": lambda a, b: [*torch._foreach_norm(a), *torch._foreach_norm(a, 1), *torch._foreach_maximum(a, 0.1)],
}


@pytest.mark.parametrize("function", LISTS.values(), ids=list(LISTS))
def test_lists_of_tensors(function: Any) -> None:
    sample = [torch.randn(3), torch.randn(2, 2), torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5]

    def split(*tensors: Any) -> Any:
        return tuple(function([t.clone() for t in tensors[:2]], list(tensors[2:])))

    for actual, expected in zip(pfvm.compile(split, tuple(sample))(*sample), split(*sample)):
        torch.testing.assert_close(actual, expected)


def test_lists_in_clipping() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(inp["x"]), inp["t"]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        optimizer.step()
        return {"norm": norm}

    assert largest_step_error(step, batches()) < 2e-5


def test_a_gradient_that_is_left_as_zeros_counts_once() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    data = list(itertools.islice(batches(), 3))
    state = copy.deepcopy(model.state_dict())
    compiled = pfvm.compile(step, data[0])
    found = [compiled(batch).item() for batch in data]
    model.load_state_dict(state)
    model.zero_grad()
    assert found == pytest.approx([step(batch).item() for batch in data], rel=2e-5)


def test_capture_of_a_whole_graph_leaves_torch_as_it_was() -> None:
    before = AveragedModel.update_parameters, vars(torch.nn.modules.batchnorm).get("float")
    capture(lambda inp: inp["x"] + 1, {"x": torch.ones(2)})
    assert before == (AveragedModel.update_parameters, vars(torch.nn.modules.batchnorm).get("float"))
