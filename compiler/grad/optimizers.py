"""Optimizers: gradient → new parameter and new state, with the formulas and defaults of torch.optim."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from pfvm.errors import OptionError, did_you_mean

from .builder import Builder


@dataclasses.dataclass(frozen=True)
class Settings:
    """Numbers that an optimizer is made with; they are constants of the step. The learning rate is an input of it."""

    lr: float | None = None
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclasses.dataclass(frozen=True)
class Update:
    """What one step does to one parameter: the new parameter, and (slot, old state, new state)."""

    parameter: ir.Value
    state: tuple[tuple[str, ir.Value, ir.Value], ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """What all parameters share: the learning rate, and for Adam the number of this step, as float scalars."""

    lr: ir.Value
    number: ir.Value | None
    make_state: Callable[[ir.Value, str], ir.Value]


Rule = Callable[[Builder, Settings, Step, ir.Value, ir.Value], Update]


def _sgd(b: Builder, s: Settings, step: Step, w: ir.Value, g: ir.Value) -> Update:
    g = _decayed(b, s, w, g)
    return Update(b.sub(w, b.mul(_of_type(b, step.lr, w), g)), ())


def _momentum(b: Builder, s: Settings, step: Step, w: ir.Value, g: ir.Value) -> Update:
    g = _decayed(b, s, w, g)
    old = step.make_state(w, "momentum")
    new = b.add(b.mul(old, s.momentum), g)
    direction = b.add(g, b.mul(new, s.momentum)) if s.nesterov else new
    return Update(b.sub(w, b.mul(_of_type(b, step.lr, w), direction)), (("momentum", old, new),))


def _adam(b: Builder, s: Settings, step: Step, w: ir.Value, g: ir.Value) -> Update:
    return _adaptive(b, s, step, w, _decayed(b, s, w, g))


def _adamw(b: Builder, s: Settings, step: Step, w: ir.Value, g: ir.Value) -> Update:
    decay = 1e-2 if s.weight_decay is None else s.weight_decay
    shrunk = w
    if decay:
        shrunk = b.mul(w, b.one_minus(b.mul(_of_type(b, step.lr, w), decay)))
    return _adaptive(b, s, step, w, g, shrunk)


def _adaptive(b: Builder, s: Settings, step: Step, w: ir.Value, g: ir.Value, start: ir.Value | None = None) -> Update:
    old_mean, old_square = step.make_state(w, "exp_avg"), step.make_state(w, "exp_avg_sq")
    mean = b.add(b.mul(old_mean, s.beta1), b.mul(g, 1 - s.beta1))
    square = b.add(b.mul(old_square, s.beta2), b.mul(b.square(g), 1 - s.beta2))
    assert step.number is not None
    bias1, bias2 = (_of_type(b, _bias(b, beta, step.number), w) for beta in (s.beta1, s.beta2))
    denominator = b.add(b.div(b.op("Sqrt", square), b.op("Sqrt", bias2)), s.eps)
    change = b.div(b.mul(b.div(_of_type(b, step.lr, w), bias1), mean), denominator)
    return Update(
        b.sub(w if start is None else start, change),
        (("exp_avg", old_mean, mean), ("exp_avg_sq", old_square, square)),
    )


def _bias(b: Builder, beta: float, number: ir.Value) -> ir.Value:
    """1 − βᵗ, from the number of the step as double: in float32 it would be off by 1e-5 for β = 0.999."""
    power = b.op("Pow", b.constant(np.float64(beta)), number)
    return b.op("Sub", b.constant(np.float64(1)), power)


def _of_type(b: Builder, scalar: ir.Value, w: ir.Value) -> ir.Value:
    return b.cast(scalar, w.dtype)


def _decayed(b: Builder, s: Settings, w: ir.Value, g: ir.Value) -> ir.Value:
    return b.add(g, b.mul(w, s.weight_decay)) if s.weight_decay else g


# Name → rule, default learning rate, does it count steps?
OPTIMIZERS: dict[str, tuple[Rule, float, bool]] = {
    "sgd": (_sgd, 1e-3, False),
    "momentum": (_momentum, 1e-3, False),
    "adam": (_adam, 1e-3, True),
    "adamw": (_adamw, 1e-3, True),
}


def check(name: str, settings: Settings) -> None:
    """Raises OptionError for an unknown optimizer or a number out of its range."""
    if name not in OPTIMIZERS:
        raise OptionError(
            f"there is no optimizer {name!r}{did_you_mean(name, OPTIMIZERS)}; there are: {', '.join(OPTIMIZERS)}"
        )
    for field in ("momentum", "beta1", "beta2"):
        if not 0 <= getattr(settings, field) < 1:
            raise OptionError(f"--{field} must be at least 0 and below 1, not {getattr(settings, field)}")
    for field in ("lr", "weight_decay", "eps"):
        number = getattr(settings, field)
        if number is not None and not 0 <= number < float("inf"):
            raise OptionError(f"--{field.replace('_', '-')} must be a number of at least 0, not {number}")
