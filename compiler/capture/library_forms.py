"""Parts of torch that ask in Python for the value of a tensor: the same arithmetic without the question."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules import batchnorm
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`momentum` may be a tensor: 1 / the number of batches, which BatchNorm(momentum=None) averages by."""
    if not isinstance(momentum, Tensor) or running_mean is None or running_var is None:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    mean, var = torch.zeros_like(running_mean), torch.ones_like(running_var)
    y = F.batch_norm(x, mean, var, weight, bias, training, 1.0, eps)
    for running, seen in ((running_mean, mean), (running_var, var)):
        running.copy_(momentum * seen + (1 - momentum) * running)
    return y


def _gaussian_nll_loss(
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """torch raises for a negative variance; a graph cannot, so that loss is NaN."""
    var = torch.full_like(x, var) if not isinstance(var, Tensor) else var
    if var.shape != x.shape and x.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    if var.shape != x.shape and (x.shape[:-1] != var.shape[:-1] or var.shape[-1] != 1):
        raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    clamped = var.clone()
    with torch.no_grad():
        clamped.clamp_(min=eps)
    loss = 0.5 * (torch.log(clamped) + (x - target) ** 2 / clamped)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    loss = torch.where(var < 0, math.nan, loss)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


_FORMS: dict[Any, Callable[..., Any]] = {F.batch_norm: _batch_norm, F.gaussian_nll_loss: _gaussian_nll_loss}


class LibraryForms(TorchFunctionMode):
    """Within the block the functions of torch.nn that have a form here run it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _FORMS.get(func, func)(*args, **(kwargs or {}))


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


@contextlib.contextmanager
def library_forms() -> Iterator[None]:
    """As `LibraryForms`; and for methods of torch's modules. BatchNorm does not turn its count into a number."""
    names = vars(batchnorm)
    names["float"] = lambda value: value.to(torch.float64) if isinstance(value, Tensor) else float(value)
    update_parameters = AveragedModel.update_parameters
    AveragedModel.update_parameters = _update_parameters  # type: ignore[method-assign]
    try:
        with LibraryForms():
            yield
    finally:
        AveragedModel.update_parameters = update_parameters  # type: ignore[method-assign]
        del names["float"]
