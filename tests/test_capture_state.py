"""Promises: weights are found without registration, no kernel runs on them, and capture leaves no trace."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from pfvm.runtime.ort import evaluate  # noqa: E402
from torch import nn  # noqa: E402

X = torch.ones(2, 3)
global_scale = torch.tensor([1.0, 2.0, 3.0])
global_nets = {"parts": [nn.Linear(3, 3), (nn.Linear(3, 2),)]}


def helper(x: Any) -> Any:
    return x * global_scale


class Owner:
    def __init__(self) -> None:
        self.net = nn.Linear(3, 2)
        self.offset = torch.tensor([5.0, 6.0])

    def step(self, x: Any) -> Any:
        return self.net(x) + self.offset


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self) -> None:
        self.hidden = torch.tensor([1.0, 2.0, 3.0])


slotted = Slotted()


def through_container(x: Any) -> Any:
    return global_nets["parts"][1][0](global_nets["parts"][0](x))  # type: ignore[index]


def closure() -> Any:
    model, shift = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.zeros(2)
    return lambda x: model(x) + shift


def partial() -> Any:
    return functools.partial(lambda net, x: net(x), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (closure, ["model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias", "shift"]),
        (lambda: helper, ["global_scale"]),
        (lambda: lambda x: helper(x), ["global_scale"]),
        (lambda: torch.no_grad()(helper), ["global_scale"]),
        (lambda: Owner().step, ["net.weight", "net.bias", "offset"]),
        (
            lambda: through_container,
            [f"global_nets.parts.{p}.{k}" for p in ("0", "1.0") for k in ("weight", "bias")],
        ),
        (partial, ["0.weight", "0.bias"]),
        (lambda: lambda x: x + slotted.hidden, ["slotted.hidden"]),
    ],
)
def test_state_is_found(make: Any, names: list[str]) -> None:
    fn = make()
    exported = capture(fn, (X,))
    assert sorted(exported.states) == sorted(names)
    with torch.no_grad():
        expected = fn(X).numpy()
    (name,) = exported.inputs.tensor_names
    np.testing.assert_allclose(evaluate(exported.model, {name: X.numpy()})["output"], expected, rtol=1e-5)


def test_kinds() -> None:
    norm = nn.BatchNorm1d(3).eval()
    exported = capture(lambda x: norm(x), X)
    kinds = {name: state.kind for name, state in exported.states.items()}
    assert kinds == {
        "norm.weight": "param",
        "norm.bias": "param",
        "norm.running_mean": "buffer",
        "norm.running_var": "buffer",
    }


def test_tied_weights_are_one_input() -> None:
    embed, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = embed.weight
    exported = capture(lambda i: head(embed(i)), torch.zeros(2, dtype=torch.int64))
    assert list(exported.states) == ["embed.weight"] or list(exported.states) == ["head.weight"]


def test_constants_made_by_the_function_are_no_state() -> None:
    exported = capture(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), X)
    assert not exported.states
    assert len(exported.model.graph.inputs) == 1


def fingerprint(tensor: Any) -> tuple[Any, ...]:
    grad = tensor.grad
    return (
        id(tensor),
        type(tensor),
        tensor._version,
        tensor.data_ptr(),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.detach().numpy().tobytes(),
        None if grad is None else (id(grad), grad.numpy().tobytes()),
        dict(tensor._backward_hooks or {}),
    )


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls, self.log = nn.Linear(3, 2), 0, []
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        self.last = self.linear(x)
        self.log.append("called")
        return self.last.relu()


def fails(x: Any, model: Any) -> Any:
    y = model(x)
    if y.sum() > 0:
        return y
    return -y


def mutates(x: Any, model: Any) -> Any:
    model.seen += model(x).sum(0)
    return model.seen


def trains(x: Any, model: Any) -> Any:
    loss = model(x).sum()
    loss.backward()
    with torch.no_grad():
        model.linear.weight -= model.linear.weight.grad
    return loss


@pytest.mark.parametrize("body", [lambda x, m: m(x), fails, mutates, trains])
def test_nothing_of_the_users_changes(body: Any) -> None:
    model = Stateful()
    model(torch.randn(4, 3)).sum().backward()
    hook = model.linear.weight.register_hook(lambda g: g)
    x = torch.randn(2, 3)
    tensors = [x, *model.parameters(), *model.buffers()]
    model.log.clear()
    del model.last
    before = [fingerprint(t) for t in tensors]
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    try:
        capture(lambda x: body(x, model), x)
    except CaptureError:
        assert body is fails
    else:
        assert body is not fails

    assert [fingerprint(t) for t in tensors] == before
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == generators[1:]
    assert not hasattr(model, "last")
    assert model.log == []
    hook.remove()
    model(x).sum().backward()  # autograd still works on them
    assert model.linear.weight.grad is not None


def test_training_goes_on_after_capture() -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin)]
    for _ in range(3):
        capture(lambda x: model(x), X)
        for m, optimizer in zip((model, twin), optimizers):
            optimizer.zero_grad()
            (m(X) ** 2).sum().backward()
            optimizer.step()
    assert torch.equal(model.weight, twin.weight)


def test_no_kernel_runs_on_weights() -> None:
    """A weight whose values could not be computed with: only its shape is looked at."""
    huge = nn.Parameter(torch.empty(1).expand(1 << 20, 1 << 12))  # 16 GiB if it were real
    from pfvm.compiler.capture.reach import walk
    from pfvm.compiler.capture.structure import describe
    from pfvm.compiler.capture.trace import trace

    def fn(x: Any) -> Any:
        return x @ huge.t()

    inputs, samples = describe((torch.ones(1, 1 << 12),), lambda v: isinstance(v, torch.Tensor), "x", ["x"])
    traced = trace(fn, inputs, samples, walk(fn), {})
    assert [s.name for s in traced.states] == ["huge"]
