"""The MLSDK's optimizers: torch.optim's mathematics under that SDK's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from pfvm.errors import InputError, short

from .names import warn

if TYPE_CHECKING:
    from .context import Context

Params = Iterable[Any]


class MNCoreOptimizer(torch.optim.Optimizer):
    """Base of the MNCore optimizers; what is derived from it and from torch.optim.Optimizer is captured alike."""


class MNCoreSGD(MNCoreOptimizer, torch.optim.SGD):
    """torch.optim.SGD."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        torch.optim.SGD.__init__(self, params, lr, momentum, dampening, weight_decay)


class MNCoreAdam(MNCoreOptimizer, torch.optim.Adam):
    """torch.optim.Adam."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        chainer_use_torch: bool = True,
    ) -> None:
        if not chainer_use_torch:
            warn("keyword", "chainer_use_torch")
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay)


class MNCoreAdamW(MNCoreOptimizer, torch.optim.AdamW):
    """torch.optim.AdamW."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        torch.optim.AdamW.__init__(self, params, lr, betas, eps, weight_decay)


class MNCoreLRScheduler:
    """A scheduler of torch's (or like it) whose learning rate reaches compiled steps.

    Here every scheduler's does: the learning rate is an input of the step, read at each call. What is not named below
    is that of the scheduler (`get_last_lr`, `state_dict`, …).
    """

    def __init__(self, scheduler: Any, context: Context | None = None) -> None:
        if not hasattr(scheduler, "step"):
            raise InputError(f"MNCoreLRScheduler takes a learning rate scheduler, not {short(scheduler)}")
        self.scheduler = scheduler
        self.context = context

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move on by one step."""
        self.scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self.scheduler, name)
