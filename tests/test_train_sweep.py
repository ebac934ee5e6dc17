"""Promise: every module of torch.nn trains as in PyTorch: output, gradients of weights and arguments, and buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.utils._pytree as pytree  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from torch import nn  # noqa: E402

from . import sweep_functions  # noqa: E402
from .sweep_modules import CASES, NOT_LAYERS, RANDOM, REFUSED  # noqa: E402
from .train_support import relative_error  # noqa: E402


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Held(nn.Module):
    """A module whose arguments of floats are shifted by parameters: their gradients become the state that is seen."""

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.module = module
        self.shifts = nn.ParameterList(torch.zeros_like(a) if is_float(a) else torch.zeros(()) for a in arguments)

    def forward(self, arguments: tuple[Any, ...]) -> Any:
        shifted = [a + s if is_float(a) else a for a, s in zip(arguments, self.shifts)]
        outputs = [y for y in pytree.tree_leaves(self.module(*shifted)) if is_float(y)]
        return sum((y * torch.cos(torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) + 1)).sum() for y in outputs)


def step_of(case: Any) -> tuple[Callable[[Any], Any], nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    make, arguments = case
    module, sample = make().double(), arguments()
    if any(torch.nn.parameter.is_lazy(p) for p in module.parameters()):
        module(*sample)
    model = Held(module, sample)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = model(inp["arguments"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step, model, sample


def two_steps(case: Any, device: str | None) -> dict[str, Any]:
    step, model, sample = step_of(case)
    step = step if device is None else pfvm.compile(step, {"arguments": sample}, device=device)
    losses = {f"loss {i}": step({"arguments": sample})["loss"].detach() for i in range(2)}
    return losses | model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_module(name: str) -> None:
    """In float64, to 1e-8, on xla:cpu."""
    assert_trains_alike(CASES[name], 3e-8 if name == "Hardsigmoid" else 1e-8)  # torch's own kernel has a float32 1/6


def assert_trains_alike(case: Any, tolerance: float) -> None:
    found, expected = (two_steps(case, device) for device in ("xla:cpu", None))
    errors = {key: relative_error(found[key], value) for key, value in expected.items()}
    assert max(errors.values()) < tolerance, errors


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(sweep_functions.CASES.keys() - sweep_functions.UNSUPPORTED))
def test_function(name: str) -> None:
    function, arguments = sweep_functions.CASES[name]
    assert_trains_alike((lambda: Called(function), arguments), 1e-6 if name == "interpolate.linear" else 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(sweep_functions.UNSUPPORTED))
def test_a_function_without_a_form_is_refused_at_its_line(name: str) -> None:
    function, arguments = sweep_functions.CASES[name]
    with pytest.raises(CaptureError, match=r"^(tests/)?(sweep_functions|test_train_sweep)\.py:\d+: "):
        two_steps((lambda: Called(function), arguments), "pfvm:cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_random_module(name: str) -> None:
    """Gradients reach the arguments."""
    found = two_steps(RANDOM[name], "xla:cpu")
    assert all(bool(value.isfinite().all()) for value in found.values())
    assert found["shifts.0"].abs().max() > 0


@pytest.mark.parametrize("name", REFUSED)
def test_refused_module(name: str) -> None:
    case, advice = REFUSED[name]
    with pytest.raises(CaptureError, match=rf"test_train_sweep\.py:\d+: {name}.*{advice}"):
        two_steps(case, "pfvm:cpu")


def test_every_module_of_torch_has_a_case() -> None:
    modules = {n for n, kind in vars(nn).items() if isinstance(kind, type) and issubclass(kind, nn.Module)}
    assert {name.partition(".")[0] for name in (*CASES, *RANDOM, *REFUSED)} | NOT_LAYERS == modules
