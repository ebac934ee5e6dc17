"""Promise: nets × optimizers on both devices: float64 to 1e-8 over five steps, float32 to 2e-5 one step at a time."""

from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.errors import UnsupportedOpError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import batches, make_step, relative_error, state_feeds  # noqa: E402

DEVICES = ("pfvm:cpu", "xla:cpu")
O = torch.optim  # noqa: E741


class Lion(O.Optimizer):
    """A hand-written one: the sign of a mixture of momentum and gradient."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(state["mean"] * first + p.grad * (1 - first)), alpha=-group["lr"])
                state["mean"].mul_(second).add_(p.grad, alpha=1 - second)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: O.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: O.SGD(p, lr=0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: O.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: O.Adam(p, lr=1e-3),
    "amsgrad": lambda p: O.Adam(p, lr=1e-3, amsgrad=True, weight_decay=0.01),
    "adamw": lambda p: O.AdamW(p, lr=1e-3),
    "rmsprop": lambda p: O.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: O.Adagrad(p, lr=1e-2, lr_decay=0.1),
    "adadelta": lambda p: O.Adadelta(p),
    "adamax": lambda p: O.Adamax(p, lr=1e-3),
    "nadam": lambda p: O.NAdam(p, lr=1e-3),
    "radam": lambda p: O.RAdam(p, lr=1e-3),
    "rprop": lambda p: O.Rprop(p, lr=1e-3),
    "asgd": lambda p: O.ASGD(p, lr=1e-2, t0=2.0),
    "adafactor": lambda p: O.Adafactor(p, lr=1e-2),
    "lion": lambda p: Lion(p),
}


class Net(nn.Module):
    """Layers in a row; the loss of four fixed mixtures of all that comes out, so that every gradient counts."""

    def __init__(self, *layers: nn.Module, loss: Any = F.cross_entropy) -> None:
        super().__init__()
        self.layers, self.loss = nn.Sequential(*layers), loss

    def forward(self, x: Any, t: Any) -> Any:
        y = self.layers(x).flatten(1)
        mixtures = torch.cos(torch.arange(y.shape[1] * 4, dtype=y.dtype).view(-1, 4) * 1.7)
        return {"loss": self.loss(y @ mixtures, t)}


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cells = kind(5, 4, batch_first=True, **options)
        self.head = nn.Linear(8 if self.cells.bidirectional else 4, 4)

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": F.cross_entropy(self.head(self.cells(x)[0].mean(1)), t)}


class Attention(nn.Module):
    """Token and rotary position, causal attention of grouped heads, a SiLU gate, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.q, self.kv, self.out = (nn.Linear(8, n, bias=False) for n in (8, 8, 8))
        self.up, self.gate, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any, t: Any) -> Any:
        h = self.embed(x)
        q = self.q(self.norm(h)).unflatten(-1, (2, 4)).transpose(1, 2)
        k, v = self.kv(self.norm(h)).unflatten(-1, (2, 1, 4)).unbind(2)
        q, k, v = self._turned(q), self._turned(k.transpose(1, 2)), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        h = h + self.out(y.transpose(1, 2).flatten(2))
        h = h + self.down(F.silu(self.gate(h)) * self.up(h))
        return {"loss": F.cross_entropy((h @ self.embed.weight.t()).transpose(1, 2), t, label_smoothing=0.1)}

    def _turned(self, x: Any) -> Any:
        angle = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), torch.tensor([1.0, 0.25], dtype=x.dtype))
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Encoder(nn.Module):
    """torch's own transformer layer with a mask of padded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 12)

    def forward(self, x: Any, t: Any) -> Any:
        h = self.layer(self.embed(x), src_key_padding_mask=x == 0)
        return {"loss": F.cross_entropy(self.head(h).flatten(0, 1), t.flatten(), ignore_index=0)}


class Experts(nn.Module):
    """A mixture of experts: the best two of four, written back by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(8, 4), nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, 8) * 0.2)

    def forward(self, x: Any, t: Any) -> Any:
        share, chosen = self.router(x).softmax(-1).topk(2)
        y = torch.einsum("bi,bkij->bkj", x, self.experts[chosen]) * share.unsqueeze(-1)
        rows = torch.arange(len(x)).repeat_interleave(2)
        y = torch.zeros_like(x).index_add(0, rows, y.flatten(0, 1))
        used = F.one_hot(chosen, 4).to(x.dtype).mean((0, 1))
        return {"loss": F.cross_entropy(self.head(y), t) + (used * share.mean()).square().sum()}


def tokens() -> Iterator[Any]:
    generator = torch.Generator().manual_seed(1)
    while True:
        x, t = torch.randint(0, 12, (2, 2, 4), generator=generator)
        yield {"x": x, "t": t}


def rows(*shape: int) -> Callable[[Any], Iterator[Any]]:
    return lambda dtype: batches(shape, dtype=dtype)


def sentences(dtype: Any) -> Iterator[Any]:
    return tokens()


def conv(*layers: nn.Module) -> nn.Module:
    return Net(nn.Conv2d(3, 4, 3, padding=1, bias=False), *layers)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Iterator[Any]]]] = {
    "mlp": (lambda: Net(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)), rows(5, 8)),
    "margins": (lambda: Net(nn.Linear(8, 8), nn.Tanh(), loss=F.multi_margin_loss), rows(5, 8)),
    "batch_norm": (lambda: conv(nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2)), rows(3, 3, 6, 6)),
    "group_norm": (lambda: conv(nn.GroupNorm(2, 4), nn.ELU(), nn.AvgPool2d(3, 2, 1)), rows(2, 3, 5, 5)),
    "instance_norm": (lambda: conv(nn.InstanceNorm2d(4, affine=True), nn.Softplus()), rows(2, 3, 4, 4)),
    "depthwise": (lambda: conv(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1), nn.PReLU()), rows(2, 3, 5, 5)),
    "transposed": (lambda: conv(nn.Tanh(), nn.ConvTranspose2d(4, 3, 3, stride=2)), rows(2, 3, 4, 4)),
    "conv1d": (lambda: Net(nn.Conv1d(3, 4, 3), nn.Mish(), nn.AdaptiveMaxPool1d(3)), rows(2, 3, 9)),
    "conv3d": (lambda: Net(nn.Conv3d(2, 3, 2), nn.Hardswish(), nn.AdaptiveAvgPool3d(2)), rows(2, 2, 4, 4, 4)),
    "shuffled": (
        lambda: conv(nn.PixelShuffle(2), nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1)),
        rows(2, 3, 3, 3),
    ),
    "rnn": (lambda: Recurrent(nn.RNN, num_layers=2), rows(3, 3, 5)),
    "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), rows(3, 2, 5)),
    "gru": (lambda: Recurrent(nn.GRU), rows(3, 3, 5)),
    "attention": (Attention, sentences),
    "encoder": (Encoder, sentences),
    "experts": (Experts, rows(4, 8)),
}

# Some gradients are zero in exact arithmetic (a bias before a normalization, torch's own encoder) or nearly so: what
# Adam or RMSprop make of such noise, dividing it by its own size, is no one's promise.
PAIRS = [
    *(("mlp", optimizer) for optimizer in OPTIMIZERS),
    *(("margins", "adam"), ("batch_norm", "adam"), ("group_norm", "momentum"), ("instance_norm", "nesterov")),
    *(("depthwise", "adam"), ("transposed", "momentum"), ("conv1d", "adamw"), ("conv3d", "adamax")),
    *(("shuffled", "momentum"), ("rnn", "sgd"), ("lstm", "adam"), ("gru", "adadelta")),
    *(("attention", "adamw"), ("encoder", "momentum"), ("experts", "adam")),
]


NO_DOUBLES = {"shuffled"}  # ONNX Runtime has no Resize of doubles


def new(net: str, optimizer: str, dtype: Any) -> tuple[Any, Iterator[Any]]:
    """The step and its data."""
    torch.manual_seed(0)
    make, data = NETS[net]
    model = make().to(dtype)
    return make_step(model, OPTIMIZERS[optimizer](model.parameters())), data(dtype)


def arrays(batch: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.numpy() for name, tensor in batch.items()}


def fits(results: Any, loss: Any, after: Any, updates: dict[str, str]) -> float:
    errors = {name: relative_error(results[output], after[name]) for name, output in updates.items()}
    return max(relative_error(results["loss"], loss), *errors.values())


@pytest.mark.slow
@pytest.mark.parametrize(("net", "optimizer"), PAIRS)
def test_one_step_at_a_time(net: str, optimizer: str) -> None:
    """float32, each step from PyTorch's own state."""
    step, data = new(net, optimizer, torch.float32)
    exported = capture(step, next(data))
    compiled = pfvm.optimize(exported.model)
    runs = {device: pfvm.load(compiled, device=device) for device in DEVICES}
    for batch in itertools.islice(data, 2):
        feeds = {**arrays(batch), **state_feeds(exported)}
        results = {device: run(feeds) for device, run in runs.items()}
        loss = step(batch)["loss"].detach()
        after = state_feeds(exported)
        for device in DEVICES:
            assert fits(results[device], loss, after, exported.updates) < 2e-5, device


@pytest.mark.slow
@pytest.mark.parametrize(("net", "optimizer"), PAIRS)
def test_doubles_over_five_steps(net: str, optimizer: str) -> None:
    """float64, each step from the last one's state on the same device."""
    step, data = new(net, optimizer, torch.float64)
    exported = capture(step, next(data))
    compiled = pfvm.optimize(exported.model)
    devices = DEVICES
    if net in NO_DOUBLES:
        with pytest.raises(UnsupportedOpError, match=r"no kernel for Resize .* with double"):
            pfvm.load(compiled, device="pfvm:cpu")
        devices = DEVICES[1:]
    runs = {device: pfvm.load(compiled, device=device) for device in devices}
    states: dict[str, dict[str, Any]] = {device: {} for device in devices}
    for batch in itertools.islice(data, 5):
        given = {**arrays(batch), **state_feeds(exported)}
        results = {device: run({**given, **states[device]}) for device, run in runs.items()}
        loss = step(batch)["loss"].detach()
        after = state_feeds(exported)
        for device in devices:
            states[device] = {name: results[device][output] for name, output in exported.updates.items()}
            assert fits(results[device], loss, after, exported.updates) < 1e-8, device


PLAIN = """
import importlib.util, json, sys
folder = sys.argv[1]
sys.path.append(folder + "/packages")
import numpy as np, onnxruntime as ort
session = ort.InferenceSession(folder + "/pfvm.onnx", providers=["CPUExecutionProvider"])
state = json.loads(session.get_modelmeta().custom_metadata_map["pfvm.state"])["state"]
names, feeds = [o.name for o in session.get_outputs()], {}
for step in range(2):
    feeds |= np.load(f"{folder}/feeds{step}.npz")
    results = dict(zip(names, session.run(None, feeds)))
    feeds |= {entry["name"]: results[entry["output"]] for entry in state if entry["output"]}
    np.savez(f"{folder}/results{step}.npz", **results)
assert not {"pfvm", "torch", "onnx"} & set(sys.modules)
assert importlib.util.find_spec("pfvm") is None
"""


@pytest.mark.slow
@pytest.mark.parametrize(("net", "optimizer"), PAIRS)
def test_the_file_in_plain_onnx_runtime(net: str, optimizer: str, tmp_path: pathlib.Path) -> None:
    """pfvm.onnx in a process that can import NumPy and ONNX Runtime only: two steps as the compiled step's."""
    import onnxruntime

    (tmp_path / "packages").mkdir()
    for package in (np, onnxruntime):
        folder = pathlib.Path(package.__file__).parent
        for part in (folder, folder.with_name(f"{folder.name}.libs")):
            if part.exists():
                (tmp_path / "packages" / part.name).symlink_to(part)
    step, data = new(net, optimizer, torch.float32)
    compiled = pfvm.compile(step, next(data), codegen_dir=tmp_path)
    signature, expected = compiled.signature, []
    for number, batch in enumerate(itertools.islice(data, 2)):
        # The file holds the numbers of the first step; SGD's dampening, for one, counts from the second on.
        numbers = {name: np.asarray(n.current()) for name, n in signature.numbers.items()} if number else {}
        np.savez(tmp_path / f"feeds{number}.npz", **arrays(batch), **numbers)
        expected.append((compiled(batch)["loss"], state_feeds(signature)))
    command = [sys.executable, "-I", "-S", "-c", PLAIN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for number, (loss, after) in enumerate(expected):
        with np.load(tmp_path / f"results{number}.npz") as results:
            assert set(results) == {"loss", *signature.updates.values()}
            assert fits(results, loss, after, signature.updates) < 2e-5


def test_there_are_enough_pairs() -> None:
    assert len(set(PAIRS)) == len(PAIRS) >= 30
    assert {net for net, _ in PAIRS} == set(NETS)
    assert {optimizer for _, optimizer in PAIRS} == set(OPTIMIZERS)
