"""Promise: gradients of kernels with groups equal PyTorch's, whatever form computes them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402


@pytest.mark.parametrize("channels, results, groups", [(6, 12, 6), (6, 9, 3)])
@pytest.mark.parametrize("stride, padding, dilation", [(2, 1, 1), (1, 2, 2)])
def test_gradient(channels: int, results: int, groups: int, stride: int, padding: int, dilation: int) -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(channels, results, 3, stride, padding, dilation, groups, bias=False).double()

    def step(x):
        conv.zero_grad()
        conv(x).sin().sum().backward()
        return conv.weight.grad

    x = torch.randn(3, channels, 10, 8, dtype=torch.float64)
    found = pfvm.compile(step, (x,), device="xla:cpu")(x)
    torch.testing.assert_close(found, step(x), rtol=1e-9, atol=1e-9)
