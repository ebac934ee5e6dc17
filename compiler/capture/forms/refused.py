"""Parts of torch that are refused by name, with what to write in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from pfvm.errors import CaptureError
from torch.nn.modules import normalization
from torch.nn.utils import rnn

Patch = tuple[Any, str, Any]  # an object, the name of an attribute, and what stands there while a function is traced


def refuse(name: str, advice: str) -> NoReturn:
    """Raises CaptureError at the line of the user's that is running."""
    from pfvm.compiler.capture.source import here

    raise CaptureError(f"{here()}: {name} cannot be captured; {advice}")


def _refusal(name: str, advice: str) -> Callable[..., NoReturn]:
    return lambda *_, **__: refuse(name, advice)


class _Apply:
    """Stands for an autograd.Function."""

    apply = staticmethod(
        _refusal("CrossMapLRN2d, a legacy of Lua whose gradient is not its own,", "write torch.nn.LocalResponseNorm")
    )


_scale = torch.amp.GradScaler.scale


def _scaled(self: torch.amp.GradScaler, outputs: Any) -> Any:
    if self.is_enabled():
        refuse(
            "GradScaler, which leaves out a step when a gradient is infinite,",
            "float32 and bfloat16 need no scaling: make it GradScaler(enabled=False), or write loss.backward() and "
            "optimizer.step()",
        )
    return _scale(self, outputs)


_PADDED = (
    "run the layer over the padded batch and pick what counts afterwards, y[torch.arange(len(y)), lengths - 1] or "
    "torch.where(mask, y, 0)"
)
_LBFGS = (
    "it decides by the values of the loss how often to call its closure: compile the closure (zero_grad, backward) and "
    "call optimizer.step(compiled) in PyTorch, or take another optimizer"
)
_ANOMALY = (
    "it looks at the values of every gradient: leave it out, and run the function itself, not the compiled one, to "
    "look for NaN"
)
_detect_anomaly = torch.autograd.detect_anomaly.__init__


def _detecting(self: torch.autograd.detect_anomaly, check_nan: bool = True) -> None:
    """torch asks for it too, for the lines of a scan's gradient, and looks at no values then."""
    if check_nan:
        refuse("torch.autograd.detect_anomaly", _ANOMALY)
    _detect_anomaly(self, check_nan)


PATCHES: tuple[Patch, ...] = (
    (torch.autograd.set_detect_anomaly, "__init__", _refusal("torch.autograd.set_detect_anomaly", _ANOMALY)),
    (torch.autograd.detect_anomaly, "__init__", _detecting),
    (normalization, "_cross_map_lrn2d", _Apply),
    (torch.amp.GradScaler, "scale", _scaled),
    (rnn, "pack_padded_sequence", _refusal("pack_padded_sequence", _PADDED)),
    (rnn, "pack_sequence", _refusal("pack_sequence", _PADDED)),
    (torch.optim.LBFGS, "step", _refusal("torch.optim.LBFGS", _LBFGS)),
    (
        torch.optim.SparseAdam,
        "step",
        _refusal(
            "torch.optim.SparseAdam, which leaves out rows without a gradient,", "write torch.optim.Adam or Adagrad"
        ),
    ),
)
