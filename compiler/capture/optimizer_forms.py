"""Optimizers of torch that ask in Python for the value of a step count: the same arithmetic without the question.

torch's own capturable forms do without it too, but in float32, which is 1e-5 off; these keep Python's float64.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Tensor = torch.Tensor


def _tensor(number: Any) -> Tensor:
    return torch.scalar_tensor(number, dtype=torch.float64)


def _radam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    beta1: Any,
    beta2: Any,
    lr: Any,
    weight_decay: Any,
    eps: Any,
    decoupled_weight_decay: bool,
    maximize: bool,
    **_: Any,
) -> None:
    for param, grad, mean, square, step_tensor in zip(params, grads, exp_avgs, exp_avg_sqs, state_steps):
        grad = -grad if maximize else grad
        step_tensor += 1
        step = step_tensor.item()
        if weight_decay != 0 and decoupled_weight_decay:
            param.mul_(1 - lr * weight_decay)
        elif weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction2 = 1 - beta2**step
        corrected = mean / (1 - beta1**step)
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * step * (beta2**step) / correction2
        rectification = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
        adapted = corrected * lr * ((correction2**0.5) / square.sqrt().add_(eps)) * rectification
        param.sub_(torch.where(_tensor(rho) > 5.0, adapted, corrected * lr))


def _asgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    axs: Sequence[Tensor],
    mus: Sequence[Tensor],
    etas: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lambd: Any,
    lr: Any,
    t0: Any,
    alpha: Any,
    weight_decay: Any,
    maximize: bool,
    **_: Any,
) -> None:
    for param, grad, average, mu, eta, step_tensor in zip(params, grads, axs, mus, etas, state_steps):
        grad = -grad if maximize else grad
        step_tensor += 1
        step = step_tensor.item()
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        rate = eta.item()
        param.mul_(1 - lambd * rate)
        param.add_(grad, alpha=-rate)
        average.copy_(torch.where(mu == 1, param, average + param.sub(average).mul_(mu)))
        eta.copy_(_tensor(lr / ((1 + lambd * lr * step) ** alpha)))
        mu.copy_(_tensor(1 / torch.sym_max(1.0, step - t0)))


_FORMS = (
    (importlib.import_module("torch.optim.radam"), "_single_tensor_radam", _radam),
    (importlib.import_module("torch.optim.asgd"), "_single_tensor_asgd", _asgd),
    # Python's own ask which number is larger.
    (importlib.import_module("torch.optim._adafactor"), "max", torch.sym_max),
    (importlib.import_module("torch.optim._adafactor"), "min", torch.sym_min),
)


@contextlib.contextmanager
def traceable_forms() -> Iterator[None]:
    """Within the block torch's optimizers run these forms."""
    saved = [(vars(module), name, vars(module).get(name)) for module, name, _ in _FORMS]
    try:
        for module, name, form in _FORMS:
            setattr(module, name, form)
        yield
    finally:
        for names, name, own in saved:
            if own is None:
                del names[name]
            else:
                names[name] = own
