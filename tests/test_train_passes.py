"""Promises of compiled training steps: the numbers of the exported step, stable, and no two random draws merged."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.compiler.exporter import to_proto  # noqa: E402
from support import assert_same_numbers, ops, run_passes  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Batch, Mlp, batches, make_step  # noqa: E402


class Cnn(nn.Module):
    """Two convolutions with batch norm and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Any, t: Any) -> Batch:
        h = F.max_pool2d(torch.relu(self.norm(self.conv1(x))), 2)
        return {"loss": F.cross_entropy(self.head(torch.relu(self.conv2(h)).flatten(1)), t)}


class Attention(nn.Module):
    """One block of a transformer over four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Any, t: Any) -> Batch:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        h = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return {"loss": F.cross_entropy(self.out(h).mean(1), t)}


NETS = {"mlp": (Mlp, (5, 8)), "cnn": (Cnn, (3, 1, 10, 10)), "attention": (Attention, (3, 4, 8))}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize(("net", "shape"), NETS.values(), ids=list(NETS))
def test_a_compiled_step_is_smaller_equal_and_stable(net: Any, shape: tuple[int, ...], optimizer: Any) -> None:
    torch.manual_seed(0)
    module, batch = net(), next(batches(shape))
    exported = to_proto(capture(make_step(module, optimizer(module.parameters())), batch).model)
    compiled = run_passes(exported)
    feeds = {name: value.numpy() for name, value in batch.items()}
    assert_same_numbers(exported, compiled, [feeds])
    assert run_passes(compiled).SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)
    parameters = len(list(module.parameters()))
    updates = [op for op in ops(compiled) if op.endswith("Update")]
    matrices = sum(
        op == "Gemm" and node.output[0].endswith(".new") for op, node in zip(ops(compiled), compiled.graph.node)
    )
    assert len(updates) + matrices == parameters
    assert len(compiled.graph.node) < 0.75 * len(exported.graph.node)
    session = onnxruntime.InferenceSession(compiled.SerializeToString())  # with its own optimizations, and no pfvm
    loss = session.run(["loss"], feeds)[0]
    np.testing.assert_allclose(loss, module(**batch)["loss"].detach().numpy(), rtol=1e-5)


def test_two_dropouts_stay_two() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Any, t: Any) -> Batch:
            h = x * self.weight
            a, b = F.dropout(h, 0.5), F.dropout(h, 0.5)
            return {"loss": (a - b).square().sum()}

    module, batch = Twice(), {"x": torch.ones(8, 64), "t": torch.zeros(8)}
    step = capture(make_step(module, torch.optim.SGD(module.parameters(), lr=0.1)), batch).model
    compiled = run_passes(to_proto(step))
    session = onnxruntime.InferenceSession(compiled.SerializeToString())
    required = {"x": batch["x"].numpy(), "t": batch["t"].numpy()}
    names = {value.name for value in session.get_inputs()}
    (loss,) = session.run(["loss"], {name: value for name, value in required.items() if name in names})
    assert loss > 100, "half of the 512 differences are not zero"
