"""Promise: every learning rate scheduler works with a compiled step, called inside it or after it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from .train_support import Mlp, batches, make_step  # noqa: E402

S = lr_scheduler
SCHEDULERS = {
    "LambdaLR": lambda o: S.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: S.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: S.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: S.LinearLR(o, 0.3, total_iters=4),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: S.PolynomialLR(o, 5, 2.0),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 5, 0.01),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.01, 0.1, 2),
    "OneCycleLR": lambda o: S.OneCycleLR(o, 0.1, total_steps=10),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.9)], [2]),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.9)], o),
}
BATCH = next(batches())


def trained(make: Any, is_inside: bool, is_compiled: bool, lr: Any) -> list[float]:
    """Learning rates and losses of five steps, and what the scheduler counts at the end."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = make(optimizer)
    plain = make_step(model, optimizer)

    def step(inp: Any) -> Any:
        result = plain(inp)
        if is_inside:
            scheduler.step()
        return result

    run = pfvm.compile(step, BATCH) if is_compiled else step
    found = []
    for batch in itertools.islice(batches(), 5):
        found.append(run(batch)["loss"].item())
        if not is_inside:
            scheduler.step()
        found.append(float(optimizer.param_groups[0]["lr"]))
    return [*found, scheduler.last_epoch if hasattr(scheduler, "last_epoch") else 0]


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "outside"])
def test_scheduler(name: str, is_inside: bool) -> None:
    results = [trained(SCHEDULERS[name], is_inside, is_compiled, 0.1) for is_compiled in (True, False)]
    assert results[0] == pytest.approx(results[1], rel=2e-5)


def test_a_rate_that_is_a_tensor() -> None:
    make = SCHEDULERS["CosineAnnealingLR"]
    results = [trained(make, True, is_compiled, torch.tensor(0.1)) for is_compiled in (True, False)]
    assert results[0] == pytest.approx(results[1], rel=2e-5)


def test_every_scheduler_of_torch_is_tried() -> None:
    kinds = {n for n, kind in vars(S).items() if isinstance(kind, type) and issubclass(kind, S.LRScheduler)}
    assert set(SCHEDULERS) == kinds - {"LRScheduler", "_LRScheduler", "ReduceLROnPlateau"}


def parts() -> tuple[Any, Any, Any]:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_step(model, optimizer), optimizer, S.StepLR(optimizer, 1, 0.5)


def test_capture_leaves_a_scheduler_as_it_was() -> None:
    plain, optimizer, scheduler = parts()

    def step(inp: Any) -> Any:
        result = plain(inp)
        scheduler.step()
        return result

    before = scheduler.state_dict(), optimizer.param_groups[0]["lr"]
    compiled = pfvm.compile(step, BATCH)
    assert before == (scheduler.state_dict(), optimizer.param_groups[0]["lr"])
    compiled(BATCH)
    with pytest.raises(pfvm.errors.PfvmError):
        compiled({"x": BATCH["x"]})
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.05)


def test_what_cannot_be_scheduled_inside_says_so() -> None:
    plain, optimizer, scheduler = parts()
    plateau = S.ReduceLROnPlateau(optimizer)

    def by_loss(inp: Any) -> Any:
        result = plain(inp)
        plateau.step(result["loss"])
        return result

    def early(inp: Any) -> Any:
        scheduler.step()
        return plain(inp)

    def between(inp: Any) -> Any:
        plain(inp)
        scheduler.step()
        return plain(inp)

    def fine(inp: Any) -> Any:
        result = plain(inp)
        scheduler.step()
        return result

    with pytest.raises(CaptureError, match=r"schedules\.py:\d+: ReduceLROnPlateau.*scheduler\.step\(float\(loss\)\)"):
        pfvm.compile(by_loss, BATCH)
    with pytest.raises(CaptureError, match=r"schedules\.py:\d+: StepLR\.step\(\) comes before optimizer\.step\(\)"):
        pfvm.compile(early, BATCH)
    with pytest.raises(CaptureError, match=r"after scheduler\.step"):
        pfvm.compile(between, BATCH)
    with pytest.raises(CaptureError, match="share one learning rate"):
        pfvm.compile(fine, BATCH, steps_per_call=2)
