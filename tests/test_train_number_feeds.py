"""Numbers of a step that stay what they are go to the device once; what changes is fed, and what a call uses up too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from pfvm.runtime.torch_numbers import NumberFeeds


class Device:
    """Counts what is put there."""

    def __init__(self) -> None:
        self.put_there: list[Any] = []

    def put(self, array: Any, name: str | None = None) -> Any:
        self.put_there.append(array.item())
        return array


def test_a_number_is_put_there_when_it_is_given_twice() -> None:
    device = Device()
    numbers = NumberFeeds(device, {"step"})  # type: ignore[arg-type]
    rate, other, step = 0.1, 0.2, 3
    fed = []
    for lr in (rate, rate, rate, other, other, 0.0, -0.0, rate):
        feeds: dict[str, Any] = {}
        state: dict[str, Any] = {}
        numbers.add({"lr": lr, "step": step}, feeds, state)
        assert {**feeds, **state}["lr"].item() == lr and feeds["step"].item() == step
        fed.append("lr" in feeds)
    assert fed == [True, False, False, True, False, True, True, True]
    assert device.put_there == [rate, other]
