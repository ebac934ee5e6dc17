"""Parts of torch that ask in Python for the value of a tensor: the same arithmetic without the question."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import batchnorm
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.overrides import TorchFunctionMode

from . import control_flow
from .forms import FORMS, refused
from .forms.loss import adaptive_log_softmax

Tensor = torch.Tensor


class LibraryForms(TorchFunctionMode):
    """Within the block the functions of torch that have a form run it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return FORMS.get(func, func)(*args, **(kwargs or {}))


def _update_parameters(self: AveragedModel, model: torch.nn.Module) -> None:
    """AveragedModel's: the first model is copied, later ones are averaged in."""
    own = itertools.chain(self.module.parameters(), self.module.buffers()) if self.use_buffers else self.parameters()
    theirs = itertools.chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters()
    is_first = self.n_averaged == 0
    groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for average, value in zip(own, theirs, strict=False):
        groups.setdefault(average.dtype, []).append((average.detach(), value.detach()))
    for pairs in groups.values():
        if self.multi_avg_fn is not None:
            averaged = [average.clone() for average, _ in pairs]
            self.multi_avg_fn(averaged, [value for _, value in pairs], self.n_averaged)
        else:
            one = self.avg_fn or get_swa_avg_fn()
            averaged = [one(average, value, self.n_averaged) for average, value in pairs]
        for (average, value), new in zip(pairs, averaged):
            average.copy_(torch.where(is_first, value.to(average.dtype), new))
    if not self.use_buffers:
        for kept, seen in zip(self.module.buffers(), model.buffers(), strict=True):
            kept.detach().copy_(seen.detach())
    self.n_averaged += 1


# (where, name, what stands there within the block)
_PATCHES: tuple[tuple[Any, str, Any], ...] = (
    # BatchNorm does not turn its count into a number.
    (batchnorm, "float", lambda value: value.to(torch.float64) if isinstance(value, Tensor) else float(value)),
    (AveragedModel, "update_parameters", _update_parameters),
    (torch.nn.AdaptiveLogSoftmaxWithLoss, "forward", adaptive_log_softmax),
    # Distributions check neither parameters nor samples unless one asks for it, as under torch.compile.
    (torch.distributions.Distribution, "_validate_args", False),
    *refused.PATCHES,
    *control_flow.PATCHES,
)


@contextlib.contextmanager
def library_forms() -> Iterator[None]:
    """As `LibraryForms`; and for methods of torch's modules."""
    saved = [(owner, name, vars(owner).get(name)) for owner, name, _ in _PATCHES]
    try:
        for owner, name, form in _PATCHES:
            setattr(owner, name, form)
        with LibraryForms():
            yield
    finally:
        for owner, name, own in saved:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
