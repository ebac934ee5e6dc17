"""Training steps whose large parameters take other forms in ONNX Runtime: state and tensors are as in eager."""

from __future__ import annotations

import copy

import pfvm
import pytest
import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions with more than 65,536 weights, of images small enough for products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(32, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256)
        self.conv2, self.linear = nn.Conv2d(256, 64, 3, stride=2, padding=1), nn.Linear(256, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv2(torch.relu(self.norm(self.conv1(x)))).flatten(1))


def step_of(model: Net, optimizer: torch.optim.Optimizer):
    def step(batch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_state_is_as_in_eager_whenever_one_looks(kind: str) -> None:
    torch.manual_seed(0)
    eager = Net()
    ours = copy.deepcopy(eager)
    make = {"SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), "Adam": lambda p: torch.optim.Adam(p, 1e-3)}[kind]
    optimizers = make(eager.parameters()), make(ours.parameters())
    batch = {"x": torch.randn(4, 32, 4, 4), "t": torch.randint(0, 300, (4,))}
    reference = step_of(eager, optimizers[0])
    step = pfvm.compile(step_of(ours, optimizers[1]), batch, device="pfvm:cpu")
    evaluate = pfvm.compile(lambda b: {"y": ours(b["x"])}, batch, device="pfvm:cpu")
    assert any(node.op_type == "GatedAdd" for node in _given(step))
    for _ in range(2):
        for _ in range(2):
            torch.testing.assert_close(step(batch)["loss"], reference(batch)["loss"].detach(), rtol=1e-4, atol=1e-5)
        seen = evaluate(batch)["y"]  # reads the state where it is
        torch.testing.assert_close(seen, eager(batch["x"]).detach(), rtol=1e-3, atol=1e-3)
        held = copy.deepcopy(ours.state_dict())
        states = [[s["momentum_buffer" if kind == "SGD" else "exp_avg"] for s in o.state.values()] for o in optimizers]
        step(batch), reference(batch)  # what was read before must not move
        for name, value in held.items():
            assert value.shape == eager.state_dict()[name].shape
        for a, b in zip(*states):
            torch.testing.assert_close(b, a, rtol=2e-2, atol=1e-4)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-2, atol=1e-3, msg=name)


def _given(compiled):
    from pfvm.runtime.ort_forms.apply import with_fast_forms

    return with_fast_forms(compiled.model).graph
