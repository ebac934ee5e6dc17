"""Python numbers of a step (a learning rate, betas) on their way to the device: most are what they were last time."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
import torch

from .resident import DeviceArray, Resident


def drawing_nothing(run: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The same function, after which torch's generator is as it was."""

    def drawn(feeds: dict[str, Any]) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            return run(feeds)

    return drawn


class NumberFeeds:
    """Puts numbers that did not change between two calls on the device once. `updated`: names of those that a call
    replaces, and that it may use up."""

    def __init__(self, resident: Resident, updated: Container[str]) -> None:
        self._resident = resident
        self._updated = updated
        self._last: dict[str, Any] = {}
        self._kept: dict[str, DeviceArray] = {}

    def add(self, numbers: Mapping[str, Any], feeds: dict[str, Any], state: dict[str, DeviceArray]) -> None:
        """Every number as a feed, or, where it is on the device, in `state`.

        The same object is the same number; an equal one (-0.0, 1 and True) may not be.
        """
        for name, value in numbers.items():
            if name in self._updated or self._last.get(name) is not value:
                self._last[name] = value
                self._kept.pop(name, None)
                feeds[name] = np.asarray(value)
            elif name in self._kept:
                state[name] = self._kept[name]
            else:
                state[name] = self._kept[name] = self._resident.put(np.asarray(value), name)
