"""Promise: a training step computes the same bits on a CPU, whether a call runs one or many, also with `until`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import bits, classifier_step  # noqa: E402

K = 3


class Convolutions(nn.Module):
    """With batch statistics, a pool and a depthwise layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depthwise, self.head = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(nn.functional.silu(self.depthwise(x)).mean((2, 3)))


class Transformer(nn.Module):
    """Two layers with dropout, on tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True) for _ in range(2))

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


class Frozen(nn.Module):
    """A recurrent layer behind one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gru, self.last = nn.Linear(8, 8).requires_grad_(False), nn.GRU(4, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.gru(torch.tanh(self.first(x)).view(-1, 2, 4).transpose(0, 1))[0][-1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 4))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "mlp": (mlp, lambda g: torch.randn(6, 8, generator=g)),
    "convolutions": (Convolutions, lambda g: torch.randn(4, 1, 8, 8, generator=g)),
    "transformer": (Transformer, lambda g: torch.randint(0, 20, (4, 6), generator=g)),
    "frozen": (Frozen, lambda g: torch.randn(5, 8, generator=g)),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
}


def trained(net: str, optimizer: str, steps: int | None, until: str | None = None) -> Any:
    """The bits of losses, weights, buffers and optimizer state after 2 * K steps."""
    torch.manual_seed(0)
    model = NETS[net][0]()
    optim = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    generator = torch.Generator().manual_seed(1)
    xs = [NETS[net][1](generator) for _ in range(2 * K)]
    ts = [torch.randint(0, 4, x.shape[:1], generator=generator) for x in xs]
    step = classifier_step(model, optim)
    compiled = pfvm.compile(step, {"x": xs[0], "t": ts[0]}, device="xla:cpu", steps_per_call=steps, until=until)
    torch.manual_seed(7)
    if steps is None:
        losses = torch.stack([compiled({"x": x, "t": t}) for x, t in zip(xs, ts)])
    else:
        calls = [slice(i, i + K) for i in (0, K)]
        losses = torch.cat([compiled({"x": torch.stack(xs[c]), "t": torch.stack(ts[c])}) for c in calls])
    return bits({"losses": losses, "model": model.state_dict(), "optimizer": optim.state_dict()["state"]})


@pytest.mark.parametrize(
    ("net", "optimizer"),
    [
        ("mlp", "adamw"),
        ("mlp", "rmsprop"),
        ("frozen", "adamw"),
        pytest.param("convolutions", "sgd", marks=pytest.mark.slow),
        pytest.param("convolutions", "adamw", marks=pytest.mark.slow),
        pytest.param("transformer", "adamw", marks=pytest.mark.slow),
    ],
)
def test_one_call_of_k_steps_is_k_calls(net: str, optimizer: str) -> None:
    assert trained(net, optimizer, K) == trained(net, optimizer, None)


def test_so_it_is_with_a_condition() -> None:
    assert trained("mlp", "adamw", K, "output < -1") == trained("mlp", "adamw", None)


def test_the_loop_holds_the_step_as_it_is_alone() -> None:
    """The update of each parameter is one node there, too; and XLA's loop is one."""
    model = mlp()
    step = classifier_step(model, torch.optim.AdamW(model.parameters()))
    batch = {"x": torch.randn(6, 8), "t": torch.zeros(6, dtype=torch.int64)}
    one, many = (pfvm.compile(step, batch, device="xla:cpu", steps_per_call=k) for k in (None, K))
    counts = [sum(n.op_type == "AdamUpdate" for n in f.model.graph.all_nodes()) for f in (one, many)]
    assert counts == [6, 6]
    many({name: value.expand(K, *value.shape) for name, value in batch.items()})
    (text,) = many.executable.hlo()
    assert text.count(" while(") == 1
