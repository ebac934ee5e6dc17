"""Promises: a step is traced as seldom as can be, and updates in place mean what they mean in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pfvm.compiler.capture import functional  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.compiler.capture.run import Run  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from pfvm.runtime.ort import evaluate  # noqa: E402

from .train_support import Mlp, batches, make_step  # noqa: E402

BATCH = next(batches())
Tensor = Any


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.AdamW,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
        torch.optim.NAdam,
    ],
    ids=["adamw", "sgd", "rmsprop", "nadam"],
)
def test_a_usual_step_is_called_twice(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "make_fx", None)  # nothing is traced again to take updates out
    calls, own = [], Run.trace
    monkeypatch.setattr(Run, "trace", lambda *args: calls.append(own(*args)))
    model = Mlp()
    optimizer = make(model.parameters())
    capture(make_step(model, optimizer), BATCH)
    assert len(calls) == 2
    assert not optimizer.state and all(p.grad is None for p in model.parameters())


def test_gradients_that_add_up_are_discovered() -> None:
    model = Mlp()

    def step(inp: Any) -> Any:
        loss = model(**inp)["loss"]
        loss.backward()
        return loss

    exported = capture(step, BATCH)
    assert exported.updates["linear1.weight.grad"] == "linear1.weight.grad.new"
    values = evaluate(exported.model, {k: v.numpy() for k, v in BATCH.items()} | {"linear2.bias.grad": ones(4)})
    twin = copy.deepcopy(model)
    twin(**BATCH)["loss"].backward()
    assert values["linear2.bias.grad.new"] == pytest.approx(twin.linear2.bias.grad.numpy() + 1, rel=1e-5)


def ones(*shape: int) -> Any:
    return torch.ones(*shape).numpy()


def test_a_predicted_state_that_no_step_reads_is_none() -> None:
    used, unused = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam([*used.parameters(), *unused.parameters()])

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = used(inp["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    names = capture(step, BATCH).states
    assert "used.weight.exp_avg" in names or "weight.exp_avg" in names
    assert not any(name.startswith("unused") for name in names)


# Programs on two buffers `a` [3, 4] and `b` [3, 4]. True: some other view of the memory is read after an update.


def handles(a: Tensor, b: Tensor) -> Tensor:
    c = a.detach()
    c.mul_(2).add_(b, alpha=0.5)
    return a + c.view_as(a)


def view_before(a: Tensor, b: Tensor) -> Tensor:
    row = a[1]
    total = row.sum()
    a.add_(1)
    return total + a.sum()


def stale_view(a: Tensor, b: Tensor) -> Tensor:
    row = a[1]
    a.add_(b)
    return row * 2


def part(a: Tensor, b: Tensor) -> Tensor:
    a[0] = b[1]
    a[:, 1:3].mul_(3)
    return a.sum(1)


def transposed(a: Tensor, b: Tensor) -> Tensor:
    a.t().copy_(b.t() * 2)
    return a


def split(a: Tensor, b: Tensor) -> Tensor:
    first, second = a.split([1, 2])
    b.sub_(a)
    second.zero_()
    return first + a.sum() + b


def of_itself(a: Tensor, b: Tensor) -> Tensor:
    a.addcmul_(a, a, value=0.5)
    b.addcmul_(b, a, value=0.5)
    a.lerp_(b, 0.25)
    b.lerp_(b, 0.25)
    return a - b


def other_types(a: Tensor, b: Tensor) -> Tensor:
    count = torch.zeros(3, dtype=torch.int64)
    count.add_(2).mul_(3)
    wide = b.double()
    wide.mul_(a)
    return a * count[:, None] + wide


def broadcast(a: Tensor, b: Tensor) -> Tensor:
    a.add_(b[0]).clamp_(min=0.1).div_(torch.tensor(2.0, dtype=torch.float64))
    b.fill_(3).masked_fill_(a > 0.5, -1.0)
    return a @ b.t()


def swapped(a: Tensor, b: Tensor) -> Tensor:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    return kept


PROGRAMS = {
    handles: False,
    view_before: False,
    stale_view: True,
    part: True,
    transposed: True,
    split: True,
    of_itself: False,
    other_types: None,
    broadcast: None,
    swapped: False,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_updates_in_place(program: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    traced_again = []
    own = functional.make_fx
    monkeypatch.setattr(functional, "make_fx", lambda *a, **k: (traced_again.append(1), own(*a, **k))[1])
    torch.manual_seed(0)
    state = {"a": torch.rand(3, 4), "b": torch.rand(3, 4)}
    before = copy.deepcopy(state)

    def step(x: Tensor) -> Tensor:
        return program(state["a"], state["b"]) + x

    exported = capture(step, (torch.zeros(()),), freeze=False)
    assert all(torch.equal(state[k], before[k]) for k in state)
    found = evaluate(exported.model, {"x": torch.zeros(()).numpy()})
    expected = step(torch.zeros(()))
    (output,) = exported.outputs.tensor_names
    assert found[output] == pytest.approx(expected.numpy(), rel=1e-5)
    for name in exported.states:
        kept = name.rpartition(".")[2]
        new = found[exported.updates[name]] if name in exported.updates else before[kept].numpy()
        assert new == pytest.approx(state[kept].numpy(), rel=1e-5), name
    if PROGRAMS[program] is not None:
        assert bool(traced_again) == PROGRAMS[program]


def test_an_input_is_not_written_to() -> None:
    kept = torch.zeros(3)

    def step(x: Tensor) -> Tensor:
        kept.add_(x)
        return x.detach().mul_(2)

    with pytest.raises(CaptureError, match=r"test_train_traces.py:\d+: input 'x' is changed in place"):
        capture(step, (torch.ones(3),))
