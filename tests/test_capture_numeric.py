"""Promise: the Exported ONNX computes what eager PyTorch computes, for what a user's forward pass is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from capture_cases import FUNCTIONS, X, check  # noqa: E402
from capture_modules import MODULES, seeded  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from torch import nn  # noqa: E402


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_equals_eager(name: str) -> None:
    fn, args = FUNCTIONS[name]
    check(fn, args, 2e-3 if name in ("casts", "dtype_mix") else 2e-5)


def test_slice_assignment_of_a_local() -> None:
    def fn(x: Any) -> Any:
        y = x.clone()
        y[:, 1:, :2] = 0
        y[0] += 1
        y[:, ::2] *= 2
        y[y > 1] = -1.0
        y[torch.tensor([1, 0]), torch.tensor([0, 2])] = 7.0
        z = y.view(2, -1)
        z[:, 0] = 5  # seen through y, too
        return y, z.t()

    check(fn, (X,))


def test_an_index_of_no_dimension_takes_a_view() -> None:
    def fn(x: Any, i: Any, j: Any) -> Any:
        y = x.clone()
        y[i] = y[j] + 1
        y[:, i, 1:] *= 2
        row = y[j]
        row.add_(3)  # seen through y
        y[j, 0] = 5.0  # seen through row
        return y, row

    for i, j in ((0, 1), (1, 1), (-1, 0)):
        check(fn, (X, torch.tensor(i), torch.tensor(j)))


def test_an_index_of_bytes_is_a_mask_and_select_takes_its_number() -> None:
    byte = torch.tensor(1, dtype=torch.uint8)
    check(lambda x, i: x.select(0, i), (X, byte))
    with pytest.raises(CaptureError, match="needs the value of a tensor"):
        capture(lambda x, i: x[i], (X, byte))


def test_list_and_loop() -> None:
    def fn(x: Any) -> Any:
        state, seen = torch.zeros(3), []
        for step in x.unbind(1)[:3]:
            state = torch.tanh(state + step[:, :3].sum(0))
            seen.append(state)
        return torch.stack(seen)

    check(fn, (X,))


@pytest.mark.parametrize("name", MODULES)
def test_module_equals_eager(name: str) -> None:
    make, args = MODULES[name]
    check(seeded(make), args)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_float_types(dtype: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(dtype).eval()
    check(model, (X.to(dtype),), 1e-10 if dtype == torch.float64 else 1e-2)


def test_bfloat16_bits_survive() -> None:
    weight = torch.tensor([1.5, -2.25], dtype=torch.bfloat16)
    exported = capture(lambda x: (x + weight).float(), (torch.ones(2, dtype=torch.bfloat16),))
    (value,) = (exported.model.graph.initializers[n] for n in exported.states)
    assert value.const_value.numpy().astype(np.float32).tolist() == [1.5, -2.25]


def test_numbers_of_doubles_are_doubles() -> None:
    """ONNX's attributes are float32."""

    def fn(x: Any) -> Any:
        y = x[:, :3, :3]
        return (
            *(F.leaky_relu(x, 0.1), F.elu(x, 0.3), F.selu(x), F.celu(x, 0.3), F.hardswish(x), F.hardsigmoid(x)),
            torch.addmm(y[0], y[0], y[1], alpha=0.3, beta=0.7),
        )

    check(fn, (X.double(),), 1e-14)


def test_training_through_quantization() -> None:
    def fn(x: Any, s: Any, z: Any) -> Any:
        x = x.detach().requires_grad_()
        ways = [
            torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
            torch.fake_quantize_per_tensor_affine(x, s[0], z[0], -8, 7),
            torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7),
        ]
        return [(y.detach(), torch.autograd.grad((y**2).sum(), x)[0]) for y in ways]

    check(fn, (X, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, -2], dtype=torch.int32)))
