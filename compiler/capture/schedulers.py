"""Learning rate schedulers that a step calls itself: noted in a trace, and called after each call of the graph.

A schedule is Python arithmetic on counters, while the rate is an input of the graph: so the scheduler itself runs,
once the new state is in its place, and its state_dict counts as in PyTorch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from pfvm.errors import CaptureError
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook

from .source import here


class Schedule:
    """The schedulers that one run of a function calls, in order."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self._stepped: set[int] = set()

    def note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer has made its step. Raises CaptureError where the rate was changed before."""
        if any(s.optimizer is optimizer for s in self.called):
            raise CaptureError(
                f"{here()}: the optimizer makes a step after scheduler.step(), at another learning rate; call the "
                "scheduler behind the last step"
            )
        self._stepped.add(id(optimizer))

    def note_scheduler(self, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """In place of scheduler.step(). Raises CaptureError for what only values decide, or in another order."""
        if args or kwargs or isinstance(scheduler, ReduceLROnPlateau):
            self._refuse(scheduler, "takes numbers that the graph computes or that would be baked in")
        if id(scheduler.optimizer) not in self._stepped:
            self._refuse(scheduler, "comes before optimizer.step()")
        self.called.append(scheduler)

    def _refuse(self, scheduler: Any, reason: str) -> NoReturn:
        raise CaptureError(
            f"{here()}: {type(scheduler).__name__}.step() {reason}; call it outside, after the compiled step "
            "(scheduler.step(float(loss)))"
        )


@contextlib.contextmanager
def noted_schedulers(schedule: Schedule) -> Iterator[None]:
    """Within the block schedulers are noted and stay as they are."""

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        schedule.note_scheduler(self, *args, **kwargs)

    own = [(kind, vars(kind)["step"]) for kind in _kinds(LRScheduler) if "step" in vars(kind)]
    hook = register_optimizer_step_post_hook(schedule.note_step)
    try:
        for kind, _ in own:
            kind.step = step
        yield
    finally:
        hook.remove()
        for kind, method in own:
            kind.step = method


def _kinds(kind: Any) -> list[Any]:
    found = [kind]
    for below in kind.__subclasses__():
        found += _kinds(below)
    return list(dict.fromkeys(found))
