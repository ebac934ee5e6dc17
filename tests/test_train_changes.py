"""Promise: what changes in the program after a step was compiled is followed or refused by name, never overlooked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.errors import StaleWeightError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import batches, classifier_step, relative_error  # noqa: E402

O = torch.optim  # noqa: E741
BATCH = next(batches())


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def set_group(**values: Any) -> Any:
    return lambda model, optimizer: optimizer.param_groups[0].update(values)


Make = Callable[[nn.Module], Any]
PATHS: dict[str, tuple[Make, Any, str]] = {
    "decay": (lambda m: O.AdamW(m.parameters(), weight_decay=0.0), set_group(weight_decay=0.1), "weight_decay = 0.1"),
    "sgd decay": (lambda m: O.SGD(m.parameters()), set_group(weight_decay=0.1), "weight_decay = 0.1"),
    "momentum": (lambda m: O.SGD(m.parameters()), set_group(momentum=0.9), "momentum = 0.9"),
    "rms": (lambda m: O.RMSprop(m.parameters()), set_group(momentum=0.9), "momentum = 0.9"),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_number_that_only_python_asked_for(name: str) -> None:
    make, change, message = PATHS[name]
    model = net()
    optimizer = make(model)
    step = pfvm.compile(classifier_step(model, optimizer), BATCH)
    step(BATCH)
    change(model, optimizer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StaleWeightError, match=f"{message}.*compile again"):
        step(BATCH)
    assert str(before) == str(model.state_dict())


@pytest.mark.parametrize("kind", ["Adam", "Adamax", "NAdam", "Adagrad", "Rprop", "SGD"])
def test_optimizer_state_that_starts_again(kind: str) -> None:
    found = []
    for is_compiled in (True, False):
        torch.manual_seed(0)
        model = net()
        optimizer = getattr(O, kind)(model.parameters(), lr=0.05, **({"momentum": 0.9} if kind == "SGD" else {}))
        step = classifier_step(model, optimizer)
        step = pfvm.compile(step, BATCH) if is_compiled else step
        for index, (batch, _) in enumerate(zip(batches(), range(4))):
            if index == 2 and kind != "Adagrad":  # which makes its state when it is made
                optimizer.state.clear()
            step(batch)
        found.append([v.detach() for v in model.parameters()])
    assert max(map(relative_error, *found)) < 2e-5


class Own(nn.Module):
    """A net with numbers, a flag that only a helper reads, and one weight in two places."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)])
        self.last, self.scale, self.calls = self.layers[2], 0.5, 0

    def scaled(self, x: Any) -> Any:
        return x * self.scale * self.gain * (2 if self.training else 1)

    def forward(self, x: Any) -> Any:
        self.calls += 1
        for layer in self.layers:
            x = layer(x)
        return self.scaled(x)


OPTIONS = {"weight": 1.0, "epoch": 0}
FACTOR = 1.0


class Trainer:
    def __init__(self) -> None:
        self.model = Own()
        self.optimizer = O.SGD(self.model.parameters(), lr=0.1)
        self.loss_function, self.epoch, self.history = F.cross_entropy, 0, []

    def step(self, inp: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss_function(self.model(inp["x"]), inp["t"]) * OPTIONS["weight"] * FACTOR
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self) -> None:
        self.epoch += 1
        self.history.append(0.5)
        OPTIONS["epoch"] += 1


def _replaced_weight(trainer: Any) -> None:
    trainer.model.load_state_dict({k: v.clone() for k, v in trainer.model.state_dict().items()}, assign=True)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (lambda t: setattr(t.model, "scale", 0.25), r"model\.scale was 0\.5 at compile and is 0\.25 now"),
    "class": (lambda t: setattr(Own, "gain", 3.0), r"model\.gain was 1\.0"),
    "mode": (lambda t: t.model.eval(), r"model\.training was True"),
    "dictionary": (lambda t: OPTIONS.update(weight=0.5), r"OPTIONS\['weight'\] was 1\.0"),
    "global": (lambda t: globals().update(FACTOR=2.0), r"FACTOR was 1\.0"),
    "function": (lambda t: setattr(t, "loss_function", F.nll_loss), r"loss_function is another function"),
    "layer": (lambda t: t.model.layers.__setitem__(1, nn.ReLU()), r"layers\.1 is another Tanh"),
    "more layers": (lambda t: t.model.layers.append(nn.ReLU()), r"layers\._modules had 3 entries"),
    "model": (lambda t: setattr(t, "model", Own()), r"model is another Own"),
    "weight": (_replaced_weight, r"weight is another tensor than at compile.*in place"),
    "hook": (lambda t: t.model.layers[0].register_forward_hook(lambda *_: None), r"_forward_hooks was"),
    "group": (lambda t: t.optimizer.add_param_group({"params": [nn.Parameter(BATCH["x"])]}), r"param_groups had 1 ent"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_python_decides_is_refused_once_it_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "weight", 1.0)
    monkeypatch.setattr(Own, "gain", 1.0)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    change, message = CHANGES[name]
    trainer = Trainer()
    step = pfvm.compile(trainer.step, BATCH)
    step(BATCH)
    change(trainer)
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(StaleWeightError, match=rf"{message}.*compile again"):
        step(BATCH)
    assert str(before) == str(trainer.model.state_dict())


def test_what_the_step_does_not_name_or_counts_itself_may_change() -> None:
    trainer = Trainer()
    step = pfvm.compile(trainer.step, BATCH)
    trainer.fit()
    trainer.model(BATCH["x"])  # counts
    trainer.best = copy.deepcopy(trainer.model)
    trainer.model.note = "of mine"
    step(BATCH)


@pytest.mark.parametrize("function", ["inference", "step"])
def test_a_dtype_that_changed_in_place(function: str) -> None:
    model = net()
    step = (
        classifier_step(model, O.SGD(model.parameters(), lr=0.1))
        if function == "step"
        else (lambda inp: model(inp["x"]))
    )
    compiled = pfvm.compile(step, BATCH)
    compiled(BATCH)
    model.double()
    with pytest.raises(StaleWeightError, match=r"weight 'model\.0\.weight' is now torch\.float64.*compile again"):
        compiled(BATCH)


def test_autocast_around_a_call_is_refused() -> None:
    compiled = pfvm.compile(lambda inp: inp["x"] @ inp["x"].T, BATCH)
    compiled(BATCH)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(StaleWeightError, match=r"autocast.*inside the function"):
        compiled(BATCH)


def test_an_array_of_numpy_that_changes() -> None:
    weights = np.ones(4, np.float32)
    compiled = pfvm.compile(lambda x: x[:, :4] * torch.from_numpy(weights), BATCH["x"])
    compiled(BATCH["x"])
    weights[2] = 3
    with pytest.raises(StaleWeightError, match=r"array 'weights' was changed after the compile"):
        compiled(BATCH["x"])


def test_a_learning_rate_may_be_numpys() -> None:
    found = []
    for is_compiled in (True, False):
        torch.manual_seed(0)
        model = net()
        optimizer = O.Adam(model.parameters(), lr=np.float64(0.1))
        step = classifier_step(model, optimizer)
        step = pfvm.compile(step, BATCH) if is_compiled else step
        for index in range(3):
            optimizer.param_groups[0]["lr"] = np.cos(index) * 0.1
            step(BATCH)
        found.append([v.detach() for v in model.parameters()])
    assert max(map(relative_error, *found)) < 2e-5


shared: dict[str, int] = {"calls": 0}


class WithAttribute(nn.Module):
    """Its attribute has the name of a global that its functions do not look up."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.shared(x["x"])


def test_an_attribute_is_not_the_global_of_its_name() -> None:
    compiled = pfvm.compile(WithAttribute(), {"x": BATCH["x"]}, freeze=False)
    expected = compiled({"x": BATCH["x"]})
    globals()["shared"] = {"calls": 1}
    try:
        torch.testing.assert_close(compiled({"x": BATCH["x"]}), expected)
    finally:
        globals()["shared"] = {"calls": 0}
