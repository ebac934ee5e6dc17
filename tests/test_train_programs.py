"""Promise: training programs of many kinds are captured as they are written, and train as they do in PyTorch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call  # noqa: E402

from .train_support import batches, relative_error  # noqa: E402

Program = tuple[Callable[[Any], Any], list[nn.Module]]
O = torch.optim  # noqa: E741


def net(outputs: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs))


def trained(
    model: nn.Module,
    optimizer: Any = None,
    before: Any = lambda model: None,
    after: Any = lambda model: None,
    loss: Any = lambda model, inp: F.cross_entropy(model(inp["x"]), inp["t"]),
) -> Program:
    """The usual step, with something between backward and optimizer or behind it."""
    optimizer = optimizer or O.SGD(model.parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model, inp)
        value.backward()
        before(model)
        optimizer.step()
        after(model)
        return value

    return step, [model]


def two_groups() -> Program:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "weight_decay": 0.2}]
    return trained(model, O.AdamW(groups, lr=0.002))


def clipped_norm() -> Program:
    return trained(net(), before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def clipped_value() -> Program:
    return trained(net(), before=lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01))


def accumulated() -> Program:
    model = net()
    optimizer = O.Adam(model.parameters())

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        losses = []
        for x, t in zip(inp["x"].chunk(5), inp["t"].chunk(5)):
            losses.append(F.cross_entropy(model(x), t) / 5)
            losses[-1].backward()
        optimizer.step()
        return torch.stack(losses).sum()

    return step, [model]


def moving_average() -> Program:
    model = net()
    average = copy.deepcopy(model).requires_grad_(False)

    def follow(model: Any) -> None:
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.mul_(0.9).add_(p, alpha=0.1)

    return trained(model, after=follow)[0], [model, average]


def adversarial() -> Program:
    maker, judge = net(8), net(1)
    optimizers = O.Adam(maker.parameters(), betas=(0.5, 0.9)), O.Adam(judge.parameters())

    def verdict(x: Any, real: bool) -> Any:
        return F.binary_cross_entropy_with_logits(judge(x), torch.full((5, 1), float(real)))

    def step(inp: Any) -> Any:
        x, noise = inp["x"], inp["x"].flip(0)
        optimizers[1].zero_grad()
        judged = verdict(x, True) + verdict(maker(noise).detach(), False)
        judged.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        fooled = verdict(maker(noise), True)
        fooled.backward()
        optimizers[0].step()
        return judged, fooled

    return step, [maker, judge]


def gradient_penalty() -> Program:
    def loss(model: Any, inp: Any) -> Any:
        x = inp["x"].clone().requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean() + y.mean()

    return trained(net(1), loss=loss)


def autocast() -> Program:
    def loss(model: Any, inp: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(inp["x"]), inp["t"])

    return trained(net(), loss=loss)


def no_optimizer() -> Program:
    model = net()
    parameters = list(model.parameters())

    def step(inp: Any) -> Any:
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.data = p.data - 0.1 * g
        return loss

    return step, [model]


def scheduled() -> Program:
    model = net()
    optimizer = O.SGD(model.parameters(), lr=0.1)
    scheduler = O.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return trained(model, optimizer, after=lambda model: scheduler.step())


def closure() -> Program:
    model = net()
    optimizer = O.SGD(model.parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        def evaluate() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inp["x"]), inp["t"])
            loss.backward()
            return loss

        return optimizer.step(evaluate)

    return step, [model]


def functional() -> Program:
    def loss(model: Any, inp: Any) -> Any:
        return F.cross_entropy(functional_call(model, dict(model.named_parameters()), (inp["x"],)), inp["t"])

    return trained(net(), loss=loss)


class Trainer:
    def __init__(self) -> None:
        self.model = net()
        self.optimizer = O.AdamW(self.model.parameters())

    def step(self, inp: Any) -> Any:
        self.optimizer.zero_grad(set_to_none=False)
        self.last_loss = F.cross_entropy(self.model(inp["x"]), inp["t"])
        self.last_loss.backward()
        self.optimizer.step()
        return self.last_loss


def method() -> Program:
    trainer = Trainer()
    return trainer.step, [trainer.model]


def partly_frozen() -> Program:
    model = net()
    model[0].requires_grad_(False)
    return trained(model, O.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9))


def hooked() -> Program:
    model = net()
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    return trained(model)


def weight_norm() -> Program:
    return trained(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.Tanh(), nn.Linear(16, 4)))


def spectral_norm() -> Program:
    return trained(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.Linear(16, 4)))


def penalized() -> Program:
    def loss(model: Any, inp: Any) -> Any:
        return F.cross_entropy(model(inp["x"]), inp["t"]) + 1e-3 * sum(p.abs().sum() for p in model.parameters())

    return trained(net(), loss=loss)


PROGRAMS = [
    *(two_groups, clipped_norm, clipped_value, accumulated, moving_average, adversarial, gradient_penalty, autocast),
    *(no_optimizer, scheduled, closure, functional, method, partly_frozen, hooked, weight_norm, spectral_norm),
    *(penalized,),
]


def run(program: Program, data: list[Any], compiled: bool) -> list[Any]:
    step, modules = program
    step = pfvm.compile(step, data[0]) if compiled else step
    results = [torch.utils._pytree.tree_leaves(step(batch)) for batch in data]
    return [*itertools.chain(*results), *(v for m in modules for v in m.state_dict().values())]


@pytest.mark.parametrize("make", PROGRAMS, ids=[make.__name__ for make in PROGRAMS])
def test_program(make: Callable[[], Program]) -> None:
    data = list(itertools.islice(batches(), 3))
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        found.append(run(make(), data, compiled))
    errors = [relative_error(a.detach().float(), e.detach().float()) for a, e in zip(*found)]
    assert len(found[0]) == len(found[1])
    assert max(errors) < 2e-5
