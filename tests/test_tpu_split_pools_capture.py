"""tpu-split-pools finds the gradients of convolutions and pools as capture writes them, in whole training steps."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("torch")

import pfvm
import torch
from pfvm.runtime.ort import evaluate
from support import ops, run_passes

Batch = dict[str, torch.Tensor]
F = torch.nn.functional


def net(*channels: int, frozen: int = 0) -> torch.nn.Module:
    """Convolutions of so many channels, 0 a pool, and scores; the first `frozen` layers are not trained."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    last, pools = 2, channels.count(0)
    for out in channels:
        layers += [torch.nn.Conv2d(last, out, 3, padding=1), torch.nn.ReLU()] if out else [torch.nn.MaxPool2d(2)]
        last = out or last
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(last * (16 >> pools) ** 2, 5))


def gradients_of(model: torch.nn.Module) -> Callable[[Batch], Batch]:
    def step(inp: Batch) -> Batch:
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        return {"loss": loss, **dict(zip(named, torch.autograd.grad(loss, list(named.values()))))}

    return step


def training_of(model: torch.nn.Module) -> Callable[[Batch], Batch]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)

    def step(inp: Batch) -> Batch:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step


@pytest.mark.parametrize("make", [gradients_of, training_of])
@pytest.mark.parametrize(
    "model",
    [net(6, 6, 0, 8, 8, 8, 0, 130, 130, 0), net(6, 0, 130, 0), net(6, 6, 0, 6, 0, frozen=1), net(6, 6, 6, 0, frozen=3)],
    ids=["as VGG", "single", "frozen", "half frozen"],
)
def test_all_pools_of_a_step_are_split(make: Callable, model: torch.nn.Module, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(3, 2, 16, 16), "t": torch.randint(0, 5, (3,))}
    pfvm.compile(make(model), batch, device="pfvm:cpu", codegen_dir=tmp_path, freeze=False)
    source = onnx.load(tmp_path / "pfvm.onnx")
    compiled = run_passes(source, "tpu-pair-columns", "tpu-split-pools", "eliminate-dead-code")
    assert "MaxPool" in ops(source)
    assert not {"MaxPool", "ScatterElements"} & {*ops(compiled)}
    before, after = (evaluate(ir.from_proto(each), _feeds(source)) for each in (source, compiled))
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=0, atol=3e-6 * abs(wanted).max(), err_msg=name)


def _feeds(source: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, given = np.random.default_rng(0), {t.name for t in source.graph.initializer}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in source.graph.input}
    return {
        name: rng.integers(0, 5, shape) if name == "t" else rng.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
        if name not in given
    }
