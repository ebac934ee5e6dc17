"""Promises of a compiled training step: PyTorch's results, current values everywhere, nothing changed by a failure."""

from __future__ import annotations

import copy
import cProfile
import io
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import InputError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, bits, make_step, trained_twins, twins  # noqa: E402

DEVICES = ["pfvm:cpu", "xla:cpu"]
BATCH = next(batches())


def sgd(**options: Any) -> Any:
    def make() -> Any:
        model = Mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)

    return make


def adam() -> Any:
    model = Mlp()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def assert_equal_state(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for (name, a), e in zip(actual.state_dict().items(), expected.state_dict().values()):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [sgd(), sgd(dampening=0.3), adam], ids=["sgd", "dampening", "adamw"])
def test_steps_equal_pytorch(device: str, make: Any) -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(make)
    step, twin_step = pfvm.compile(make_step(model, optimizer), BATCH, device=device), make_step(twin, twin_optimizer)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (optimizer, twin_optimizer)]
    data = batches()
    for _ in range(5):
        batch = next(data)
        torch.testing.assert_close(step(batch)["loss"], twin_step(batch)["loss"].detach(), rtol=2e-5, atol=1e-6)
        for scheduler in schedulers:
            scheduler.step()
    assert_equal_state(model, twin)
    for mine, theirs in zip(optimizer.state_dict()["state"].values(), twin_optimizer.state_dict()["state"].values()):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_float64_over_five_steps(device: str) -> None:
    def make() -> Any:
        model = Mlp().double()
        return model, torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)

    model, twin = trained_twins(make, batches(dtype=torch.float64), device)
    assert_equal_state(model, twin, 1e-8)


LOOKS = {
    "state_dict": lambda m, o: m.state_dict()["linear1.weight"],
    "saved": lambda m, o: torch.load(saved(m))["linear1.weight"],
    "deepcopy": lambda m, o: copy.deepcopy(m).linear1.weight,
    "called": lambda m, o: m.linear1(torch.eye(8)).detach().T - m.linear1.bias.detach()[:, None],
    "held": lambda m, o: m.held,
    "numpy": lambda m, o: torch.from_numpy(m.linear1.weight.detach().numpy()),
    "optimizer's": lambda m, o: o.param_groups[0]["params"][0],
    "list": lambda m, o: torch.stack([m.linear1.weight, m.linear1.weight])[0],
}


def saved(model: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
def test_every_way_to_look_shows_current_values(look: Any) -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(sgd())
    step, twin_step = pfvm.compile(make_step(model, optimizer), BATCH), make_step(twin, twin_optimizer)
    held: list[Any] = [model.linear1.weight]
    for _ in range(2):
        step(BATCH)
        twin_step(BATCH)
    object.__setattr__(model, "held", held[0])
    torch.testing.assert_close(look(model, optimizer), twin.linear1.weight.detach(), check_dtype=True)


CHANGES = {
    "in place": lambda m, o: m.linear1.weight.data.mul_(0.5),
    "load_state_dict": lambda m, o: m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()}),
    "replaced": lambda m, o: o.state[m.linear1.weight].update(momentum_buffer=torch.ones(16, 8)),
    "numpy": lambda m, o: np.multiply(m.linear1.bias.data.numpy(), 2, out=m.linear1.bias.data.numpy()),
    "optimizer loaded": lambda m, o: o.load_state_dict(halved(o.state_dict())),
    "learning rate": lambda m, o: o.param_groups[0].update(lr=0.01),
    "momentum": lambda m, o: o.param_groups[0].update(momentum=0.5),
    "eager step": lambda m, o: make_step(m, o)(BATCH),
}


def halved(state: Any) -> Any:
    state = copy.deepcopy(state)
    for entry in state["state"].values():
        entry["momentum_buffer"] *= 0.5
    return state


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_every_way_to_change_state_is_seen(change: Any, device: str) -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(sgd())
    step, twin_step = pfvm.compile(make_step(model, optimizer), BATCH, device=device), make_step(twin, twin_optimizer)
    for _ in range(2):
        step(BATCH)
        twin_step(BATCH)
        change(model, optimizer)
        change(twin, twin_optimizer)
        torch.testing.assert_close(step(BATCH)["loss"], twin_step(BATCH)["loss"].detach(), rtol=2e-5, atol=1e-6)
    assert_equal_state(model, twin)


def test_a_kept_state_dict_and_views_stay_current() -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(sgd())
    step, twin_step = pfvm.compile(make_step(model, optimizer), BATCH), make_step(twin, twin_optimizer)
    kept, row = model.state_dict(), model.linear2.weight.detach()[0]
    for _ in range(3):
        step(BATCH)
        twin_step(BATCH)
    torch.testing.assert_close(kept["linear1.weight"], twin.linear1.weight.detach())
    torch.testing.assert_close(row, twin.linear2.weight[0].detach())


class Counter(nn.Module):
    """Sums what it has seen in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        self.seen += x.sum(0)
        return x * self.scale


ARRAYS = {
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "slice": lambda t: t.numpy()[:3],
    "memory": lambda t: torch.from_numpy(t.numpy()),
}


@pytest.mark.parametrize("view", ARRAYS.values(), ids=list(ARRAYS))
@pytest.mark.parametrize("is_early", [True, False])
def test_arrays_of_a_buffer_stay_current_both_ways(view: Any, is_early: bool) -> None:
    model = Counter()
    early = view(model.seen) if is_early else None
    step = pfvm.compile(lambda x: model(x), torch.ones(2, 3))
    step(torch.ones(2, 3))
    array = view(model.seen) if early is None else early
    step(torch.ones(2, 3))
    assert array.tolist() == model.seen.tolist() == [4.0] * 3
    array += 10
    step(torch.ones(2, 3))
    assert array.tolist() == model.seen.tolist() == [16.0] * 3


def test_tensors_that_nobody_looks_at_stay_on_the_device() -> None:
    ((model, optimizer), _) = twins(sgd())
    step = pfvm.compile(make_step(model, optimizer), BATCH)
    step(BATCH)
    version = model.linear1.weight.__dict__
    for _ in range(3):
        step(BATCH)
    assert model.linear1.weight.__dict__ is version and version, "still on the device"
    assert isinstance(model.linear1.weight, nn.Parameter)
    assert model.linear1.weight.shape == (16, 8)
    assert version, "a shape is no use of values"
    model.linear1.weight.sum()
    assert type(model.linear1.weight) is nn.Parameter


def test_state_costs_little_at_each_call() -> None:
    """Some calls in Python a step for each tensor that nobody looks at. Counted: a clock depends on the machine."""
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
    step = pfvm.compile(
        make_step(Chain(layers), torch.optim.SGD(layers.parameters(), lr=0.1)),
        {"x": BATCH["x"][:, :4], "t": BATCH["t"]},
    )
    state = step._run.__self__
    feeds = {"x": BATCH["x"][:, :4].numpy(), "t": BATCH["t"].numpy()}
    state.run(feeds)
    profile = cProfile.Profile()
    profile.runcall(state.run, feeds)
    assert sum(entry.callcount for entry in profile.getstats()) < 20 * 100


class Chain(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": nn.functional.cross_entropy(self.layers(x), t)}


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_call_changes_nothing(device: str) -> None:
    ((model, optimizer), _) = twins(sgd())
    step = pfvm.compile(make_step(model, optimizer), BATCH, device=device)
    step(BATCH)
    before = bits((model.state_dict(), optimizer.state_dict()))
    for bad in ({"x": BATCH["x"]}, {**BATCH, "x": torch.zeros(4, 8)}, {**BATCH, "t": torch.full((5,), 99)}):
        with pytest.raises((InputError, pfvm.errors.PfvmError)):
            step(bad)
    assert bits((model.state_dict(), optimizer.state_dict())) == before
    step(BATCH)


class Lookup(nn.Module):
    """The index into the table is known only inside the step."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": nn.functional.cross_entropy(self.head(self.table(x.cumsum(1) - x).mean(1)), t)}


@pytest.mark.parametrize("device", DEVICES)
def test_state_outlives_a_failure_inside_the_step(device: str) -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(
        lambda: (m := Lookup(), torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
    )
    good = {"x": torch.tensor([[1, 2, 0], [0, 1, 1]]), "t": torch.tensor([1, 2])}
    step, twin_step = pfvm.compile(make_step(model, optimizer), good, device=device), make_step(twin, twin_optimizer)
    for _ in range(2):
        step(good)
        twin_step(good)
    with pytest.raises(pfvm.errors.PfvmError, match="embedding"):
        step({**good, "x": torch.tensor([[9, 9, 0], [0, 1, 1]])})
    torch.testing.assert_close(step(good)["loss"], twin_step(good)["loss"].detach())
    assert_equal_state(model, twin)


def test_xla_donates_the_memory_of_state() -> None:
    from pfvm.runtime.torch_deferred import on_device

    ((model, optimizer), _) = twins(sgd())
    step = pfvm.compile(make_step(model, optimizer), BATCH, device="xla:cpu")
    step(BATCH)
    values = on_device(model.linear1.weight)
    assert values is not None
    before = values.array
    step(BATCH)
    assert before.is_deleted()
    assert values.array is not before


def test_another_path_is_refused_by_name() -> None:
    ((model, optimizer), _) = twins(sgd())
    step = pfvm.compile(make_step(model, optimizer), BATCH)
    optimizer.param_groups[0]["momentum"] = 0
    with pytest.raises(InputError, match=r"momentum = 0\.0.*another path; compile again"):
        step(BATCH)
    optimizer.param_groups[0]["momentum"] = 0.9
    step(BATCH)
    optimizer.param_groups[0]["nesterov"] = True
    with pytest.raises(InputError, match=r"optimizer\.nesterov was False at compile and is True now"):
        step(BATCH)


def test_a_change_of_mode_is_refused_where_it_matters() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    step = pfvm.compile(lambda x: model(x), torch.randn(4, 3))
    step(torch.randn(4, 3))
    model.eval()
    with pytest.raises(InputError, match=r"module 'model\.1' was in training mode.*train\(\)"):
        step(torch.randn(4, 3))


def test_gradients_accumulate_over_calls() -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(sgd())

    def parts(m: Any, o: Any) -> Any:
        def accumulate(inp: Any) -> Any:
            loss = m(**inp)["loss"]
            loss.backward()
            return loss

        def update() -> Any:
            o.step()
            o.zero_grad()
            return torch.zeros(())

        return accumulate, update

    accumulate, update = parts(model, optimizer)
    eager, eager_update = parts(twin, twin_optimizer)
    compiled = pfvm.compile(accumulate, BATCH)
    for batch, _ in zip(batches(), range(3)):
        compiled(batch)
        eager(batch)
    torch.testing.assert_close(model.linear1.weight.grad, twin.linear1.weight.grad)
    update()
    eager_update()
    assert_equal_state(model, twin)
