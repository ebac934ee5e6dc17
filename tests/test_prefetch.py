"""Prefetched batches give the results of a plain loop, in its order; errors surface there; the thread ends with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import InputError, OptionError  # noqa: E402

from .mesh_nets import BATCH, make_step  # noqa: E402

LONG = 30.0  # seconds: more than anything here takes


class Rows(torch.utils.data.Dataset[Any]):
    """Rows that are drawn when they are asked for, as augmentation does."""

    def __init__(self, count: int = 5 * BATCH) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.randn(8, dtype=torch.float64) + 0.01 * index, "t": torch.tensor(index % 4)}


def loader(count: int = 5 * BATCH, **options: Any) -> Any:
    return torch.utils.data.DataLoader(Rows(count), batch_size=BATCH, shuffle=True, **options)


def sample(rows: int = BATCH) -> dict[str, Any]:
    return {"x": torch.zeros(rows, 8, dtype=torch.float64), "t": torch.zeros(rows, dtype=torch.int64)}


def compiled(device: str = "pfvm:cpu", steps: int | None = None, **options: Any) -> Any:
    model, step = make_step("mlp")
    return model, pfvm.compile(step, sample(), device=device, steps_per_call=steps, **options)


def plain(batches: Any, step: Any, steps: int | None) -> list[Any]:
    if steps is None:
        return [step(batch)["loss"] for batch in batches]
    losses, waiting = [], []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == steps:
            losses.append(step({key: torch.stack([each[key] for each in waiting]) for key in batch})["loss"])
            waiting.clear()
    return losses


@pytest.mark.parametrize(
    ("device", "steps", "options"),
    [
        ("pfvm:cpu", None, {}),
        ("pfvm:cpu", 2, {}),
        ("xla:cpu", 2, {}),
        pytest.param("xla:cpu", None, {"mesh": "data=4"}, marks=pytest.mark.slow),
    ],
)
def test_bits_of_a_plain_loop(device: str, steps: int | None, options: dict[str, Any]) -> None:
    """Random numbers too: the loader and dropout draw from the same generator."""
    if device.startswith("xla"):
        pytest.importorskip("jax")
    results = []
    for prefetched in (False, True):
        model, step = compiled(device, steps, **options)
        torch.manual_seed(5)
        losses: list[Any] = []
        batches = loader()
        ready = pfvm.prefetch(batches, step, depth=2)
        for _ in range(2):  # epochs
            losses += [step(batch)["loss"] for batch in ready] if prefetched else plain(batches, step, steps)
        results.append((torch.stack(losses), dict(model.state_dict()), torch.get_rng_state()))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_batches_are_loaded_while_nobody_asks_but_no_more_than_depth() -> None:
    loaded = [threading.Event() for _ in range(8)]

    def batches() -> Iterator[Any]:
        for event in loaded:
            event.set()
            yield sample()

    _, step = compiled()
    source = iter(pfvm.prefetch(batches(), step, depth=2))
    step(next(source))
    assert loaded[3].wait(LONG)  # one is in use, two are ready, and the thread has the next in its hands
    time.sleep(0.3)
    assert not loaded[4].is_set()
    for batch in source:
        step(batch)
    assert all(event.is_set() for event in loaded)


def test_loading_goes_on_while_a_call_runs() -> None:
    """By events: the loader has its second batch only when a call is under way, which waits for that batch."""
    pytest.importorskip("jax")
    under_way, loaded = threading.Event(), threading.Event()

    def batches() -> Iterator[Any]:
        yield sample()
        assert under_way.wait(LONG)
        loaded.set()
        yield sample()

    _, step = compiled()
    run = step.executable.run_on_device

    def slow(*args: Any) -> Any:
        under_way.set()
        assert loaded.wait(LONG)
        return run(*args)

    step.executable.run_on_device = slow
    assert len([step(batch) for batch in pfvm.prefetch(batches(), step)]) == 2


def test_an_error_of_the_loader_comes_behind_the_batches_before_it() -> None:
    def batches() -> Iterator[Any]:
        yield sample()
        yield sample()
        raise OSError("disk gone")

    _, step = compiled()
    seen = 0
    with pytest.raises(OSError, match="disk gone"):
        for batch in pfvm.prefetch(batches(), step):
            step(batch)
            seen += 1
    assert seen == 2


def test_a_batch_that_does_not_fit_is_named() -> None:
    _, step = compiled()
    with pytest.raises(InputError, match=r"input 'x': dim 0 must be 16 .* got shape \[3, 8\]"):
        next(iter(pfvm.prefetch([sample(3)], step)))
    _, steps = compiled(steps=2)
    with pytest.raises(InputError, match=r"the batches of a call have shapes \[16, 8\] and \[3, 8\]; drop the smaller"):
        next(iter(pfvm.prefetch([sample(), sample(3)], steps)))
    with pytest.raises(InputError, match="this batch was prefetched for"):
        steps(next(iter(pfvm.prefetch([sample()], step))))
    for wrong, message in (
        (lambda: pfvm.prefetch([], print), "takes a function that pfvm.compile returned"),  # type: ignore[arg-type]
        (lambda: pfvm.prefetch([], step, depth=0), "depth=0"),
        (lambda: pfvm.prefetch(3, step), "takes batches to loop over"),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError, match=message):
            wrong()


def test_what_is_left_over_waits_and_is_counted() -> None:
    _, steps = compiled(steps=2)
    source = iter(pfvm.prefetch([sample()] * 5, steps))
    assert len([steps(batch) for batch in source]) == 2
    assert source.left_over == 1


def test_the_thread_ends_with_the_loop() -> None:
    closed = threading.Event()

    def batches() -> Iterator[Any]:
        try:
            while True:
                yield sample()
        finally:
            closed.set()

    _, step = compiled()
    for batch in pfvm.prefetch(batches(), step):
        step(batch)
        break
    assert closed.wait(LONG)  # the loader was closed, in its own thread
    deadline = time.monotonic() + LONG
    while any(thread.name == "pfvm prefetch" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_functions_that_change_nothing_and_loaders_of_tuples() -> None:
    linear = torch.nn.Linear(3, 2)
    function = pfvm.compile(lambda x, y: linear(x) + y, (torch.zeros(4, 3), torch.zeros(2)))
    batches = [(torch.randn(4, 3), torch.randn(2)) for _ in range(3)]
    for batch, (x, y) in zip(pfvm.prefetch(batches, function), batches, strict=True):
        torch.testing.assert_close(function(batch), linear(x).detach() + y)
