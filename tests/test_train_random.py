"""Promises: dropout and random numbers are in the graph, follow torch's seed, and are the same on every device."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.compiler.capture import random as draws  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.compiler.signature import read_manifest  # noqa: E402
from pfvm.errors import CaptureError, PfvmError  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from .train_support import batches, make_step  # noqa: E402

BATCH = next(batches())
DEVICES = ["pfvm:cpu", "xla:cpu"]


class Net(nn.Module):
    """One dropout, in a part that is computed again for the backward pass where `again` says so."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.first, self.drop, self.last, self.again = nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4), again

    def body(self, x: Any) -> Any:
        return self.drop(self.first(x).relu())

    def forward(self, x: Any, t: Any) -> Any:
        h = checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)
        return {"loss": F.cross_entropy(self.last(h), t)}


def losses(device: str, again: bool = False) -> list[float]:
    torch.manual_seed(0)
    model = Net(again)
    step = pfvm.compile(make_step(model, torch.optim.SGD(model.parameters(), lr=0.1)), BATCH, device=device)
    torch.manual_seed(7)
    return [step(BATCH)["loss"].item() for _ in range(3)]


def test_masks_are_the_same_on_every_device_and_in_a_recomputation() -> None:
    expected = losses("pfvm:cpu")
    assert len(set(expected)) == 3
    assert losses("xla:cpu") == pytest.approx(expected, rel=1e-6)
    assert losses("xla:cpu", again=True) == pytest.approx(expected, rel=1e-6)


def test_the_seed_is_an_input() -> None:
    model = Net()
    manifest = read_manifest(capture(make_step(model, torch.optim.SGD(model.parameters(), lr=0.1)), BATCH).model)
    assert [(e.name, e.output) for e in manifest if e.kind == "rng"] == [("rng.seed", None)]
    assert "first.weight" in {e.name for e in manifest}


@pytest.mark.parametrize("device", DEVICES)
def test_distributions(device: str) -> None:
    drop, x = nn.Dropout(0.3), torch.ones(300, 400)

    def draw(x: Any) -> Any:
        return (
            drop(x),
            drop(x),
            torch.randn(300, 400),
            torch.rand(5000),
            torch.randint(3, 9, (5000,)),
            torch.randperm(9),
        )

    compiled = pfvm.compile(draw, x, device=device)
    torch.manual_seed(5)
    first, second, normal, uniform, integers, order = compiled(x)
    again = compiled(x)[0]
    for kept in (first, second, again):
        assert (kept > 0).float().mean().item() == pytest.approx(0.7, abs=0.01)
        assert kept.max().item() == pytest.approx(1 / 0.7)
    for other in (second, again, first.roll(1, 0), first.roll(1, 1)):
        assert ((first > 0) & (other > 0)).float().mean().item() == pytest.approx(0.49, abs=0.01)
    assert (normal.mean().item(), normal.std().item()) == pytest.approx((0, 1), abs=0.02)
    assert (uniform.min().item() >= 0, uniform.max().item() < 1) == (True, True)
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.02)
    assert integers.unique().tolist() == [3, 4, 5, 6, 7, 8]
    assert sorted(order.tolist()) == list(range(9))
    torch.manual_seed(5)
    assert torch.equal(compiled(x)[0], first)


@pytest.mark.parametrize("device", DEVICES)
def test_samples_of_torchs_distributions(device: str) -> None:
    weights = torch.tensor([[1.0, 0.0, 3.0, 4.0], [0.0, 0.0, 2.0, 0.0]])

    def draw(weights: Any) -> Any:
        normal = torch.distributions.Normal(weights[:1], 2.0).expand((9000, 4))
        chosen = torch.distributions.Categorical(weights)
        heavy = torch.distributions.Cauchy(weights[:1], 2.0).expand((9000, 4)).sample()
        few = torch.multinomial(weights[0], 3)
        return normal.sample(), normal.rsample(), chosen.sample((9000,)), few, heavy, chosen.probs

    sample, reparametrized, chosen, few, heavy, _ = pfvm.compile(draw, weights, device=device)(weights)
    quartiles = torch.quantile(heavy - weights[:1], torch.tensor([0.25, 0.5, 0.75]), 0)
    assert torch.allclose(quartiles, torch.tensor([[-2.0], [0.0], [2.0]]).expand(3, 4), atol=0.2)
    for drawn in (sample, reparametrized):
        assert drawn.mean(0).tolist() == pytest.approx([1, 0, 3, 4], abs=0.1)
        assert drawn.std(0).tolist() == pytest.approx([2] * 4, abs=0.1)
    shares = torch.stack([(chosen == i).float().mean(0) for i in range(4)], 1)
    assert torch.allclose(shares, weights / weights.sum(1, keepdim=True), atol=0.03)
    assert (chosen.dtype, sorted(few.tolist())) == (torch.int64, [0, 2, 3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_small_weight_does_not_come_first_by_the_lowest_number(dtype: Any) -> None:
    """One uniform number in 2**24 is 0, and each word of a vocabulary draws its own."""
    weights = torch.tensor([0.0, 1e-7, 0.9], dtype=dtype)
    drawn = torch.tensor([0.0, 0.0, 0.2])
    assert draws._multinomial(lambda sizes: drawn.expand(sizes), weights, 1).tolist() == [2]
    assert draws._multinomial(lambda sizes: drawn.expand(sizes), weights, 2, True).tolist() == [2, 2]
    assert (draws._exponential(lambda sizes: torch.zeros(sizes), torch.empty(3)) > 0).all()


def test_normals_have_the_dtype_of_their_mean() -> None:
    x = torch.ones(3)
    for given in ((x, x.double()), (x.double(), x), (2.0, x.half())):
        assert pfvm.compile(lambda given: torch.normal(*given), (given,))(given).dtype == torch.normal(*given).dtype


@pytest.mark.parametrize("checks", [True, False])
def test_distributions_in_a_loss_have_their_gradients(checks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # The process's own setting, which torch.compile turns off for good where a test called it before.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", checks)
    net, x, actions = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 1])

    def step(x: Any, actions: Any) -> Any:
        policy = torch.distributions.Categorical(logits=net(x))
        loss = -policy.log_prob(actions).mean() - 0.1 * policy.entropy().mean()
        return torch.autograd.grad(loss, list(net.parameters()))

    for own, expected in zip(pfvm.compile(step, (x, actions))(x, actions), step(x, actions), strict=True):
        assert torch.allclose(own, expected, atol=1e-6)
    assert torch.distributions.Distribution._validate_args is checks


def test_a_failed_call_draws_nothing() -> None:
    drop = nn.Dropout(0.3)
    weight = nn.Parameter(torch.ones(3))

    def step(x: Any) -> Any:
        loss = (drop(x) * weight).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None
        return loss

    compiled = pfvm.compile(step, torch.ones(3))
    before = torch.get_rng_state()
    with pytest.raises(PfvmError):
        compiled(torch.ones(4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("exact", "most"), [(True, 0), (False, 10)])
def test_the_emulator_rounds_what_masks_are_drawn_from(exact: bool, most: int) -> None:
    """A few elements in ten thousand of a mask; without its rounding none."""

    def mask(device: str, **options: bool) -> torch.Tensor:
        torch.manual_seed(0)
        drop = pfvm.compile(
            lambda x: {"y": nn.functional.dropout(x, 0.5)}, torch.ones(100, 100), device=device, device_options=options
        )
        return drop(torch.ones(100, 100))["y"] != 0

    assert int((mask("mncore2:emu", exact=exact) != mask("pfvm:cpu")).sum()) <= most


def test_dropout_in_a_module_is_not_frozen() -> None:
    module = nn.Dropout(0.5)
    compiled = pfvm.compile(module, torch.ones(100))
    assert not torch.equal(compiled(torch.ones(100)), compiled(torch.ones(100)))
    with pytest.raises(CaptureError, match=r"model\.eval\(\)"):
        pfvm.compile(module, torch.ones(100), freeze=True)
