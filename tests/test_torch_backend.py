"""Promises of torch.compile(backend="pfvm"): eager's results and gradients, any sizes, errors with names."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pfvm.errors import CaptureError, OptionError  # noqa: E402
from torch import nn  # noqa: E402

DEVICES = ["pfvm:cpu", "xla:cpu"]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def fast(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="pfvm", options=options or None)


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_gradients_and_buffers_equal_eager(device: str) -> None:
    pytest.importorskip("jax" if device.startswith("xla") else "onnxruntime")
    model = conv_net()
    twin = copy.deepcopy(model)
    compiled = fast(model, device=device)
    for seed in range(2):
        x = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
        mine, theirs = (m(x.requires_grad_()).square().sum() for m in (compiled, twin))
        assert_close(mine, theirs)
        gradients = [torch.autograd.grad(loss, [x, *m.parameters()]) for loss, m in ((mine, model), (theirs, twin))]
        for a, e in zip(*gradients):
            assert_close(a, e)
    for a, e in zip(model.buffers(), twin.buffers()):
        assert_close(a, e)


def test_an_optimizer_steps_through_it() -> None:
    model = nn.Linear(4, 1)
    compiled = fast(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (compiled(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_other_sizes_and_modes() -> None:
    model = conv_net()
    twin = copy.deepcopy(model)
    compiled = fast(model)
    for size in (2, 3, 5):  # from the second on torch hands over graphs with symbolic sizes
        x = torch.randn(size, 3, 4, 4, requires_grad=True)
        mine, theirs = (torch.autograd.grad(m(x).square().sum(), x)[0] for m in (compiled, twin))
        assert_close(mine, theirs)
    model.eval()
    twin.eval()
    with torch.no_grad():
        assert_close(compiled(x), twin(x))


def test_a_transposed_activation_between_forward_and_backward() -> None:
    def function(x: Any, w: Any) -> Any:
        y = (x @ w).sigmoid().transpose(0, 1)
        return (y * y).reshape(2, -1).exp()

    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    compiled = fast(function)
    results = [torch.autograd.grad(f(x, w).sum(), (x, w)) for f in (compiled, function)]
    for a, e in zip(*results):
        assert_close(a, e)


def test_attention_and_dropout() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    compiled = fast(layer)
    x = torch.randn(2, 3, 8)
    assert not torch.equal(compiled(x), compiled(x)), "a mask for each call"
    compiled(x).sum().backward()
    assert layer.linear1.weight.grad is not None
    layer.eval()
    assert_close(compiled(x), layer(x))


def test_what_is_refused_has_a_name() -> None:
    def run(**arguments: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda x: x + 1, backend="pfvm", **arguments)(torch.ones(2))

    assert_close(run(options={"opt_level": 0}), torch.full((2,), 2.0))
    for arguments, error, message in (
        ({"options": {"device": "toaster"}}, OptionError, "known devices: pfvm:cpu"),
        ({"options": {"device": "xla:tpu@v9"}}, OptionError, "no chip .v9."),
        ({"options": {"nonsense": 1}}, OptionError, "no option nonsense"),
        ({"mode": "max-autotune"}, OptionError, "no modes"),
    ):
        with pytest.raises(Exception, match=message) as raised:
            run(**arguments)
        assert isinstance(raised.value, error) or error.__name__ in str(raised.value)


def test_an_op_without_a_translation_is_named_with_its_line() -> None:
    def inner(x: Any) -> Any:
        y = x + 1
        return torch.linalg.qr(y)[0]  # this line

    source, first = inspect.getsourcelines(inner)
    line = first + next(i for i, text in enumerate(source) if "this line" in text)
    with pytest.raises(CaptureError, match=rf"^test_torch_backend\.py:{line}: ATen op aten.linalg_qr.* no translation"):
        fast(lambda x: inner(x * 2))(torch.randn(3, 3))
