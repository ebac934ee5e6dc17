"""Promise: `pfvm grad` makes of an inference model one training step with the gradients that PyTorch has."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pfvm
import pytest
import torch
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.signature import read_manifest
from pfvm.errors import InvalidModelError, OptionError, UnsupportedOpError
from pfvm.tools import cli
from torch import nn

DOUBLE = torch.double
CRITERIA = {"mse": nn.functional.mse_loss, "cross_entropy": nn.functional.cross_entropy}


def exported(
    net: nn.Module, x: torch.Tensor, dynamic: dict[int, str] | None = None, opset: int = 17
) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), file, dynamo=False, input_names=["x"], output_names=["y"], opset_version=opset,
            dynamic_axes=None if dynamic is None else {"x": dynamic}, do_constant_folding=False,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def assert_gradients(
    net: nn.Module,
    x: torch.Tensor,
    target: torch.Tensor,
    devices: tuple[str, ...] = ("pfvm:cpu", "xla:cpu"),
    dynamic: dict[int, str] | None = None,
) -> onnx.ModelProto:
    """One step of SGD with lr 1 subtracts exactly the gradient; in float64."""
    net = net.to(DOUBLE).eval()
    for parameter in net.parameters():  # equal ones would be one initializer in the file
        parameter.data += 0.1 * torch.randn_like(parameter)
    loss_fn = "mse" if target.dtype == DOUBLE else "cross_entropy"
    step = pfvm.grad(exported(net, x, dynamic), loss_fn=loss_fn, lr=1.0)
    onnx.checker.check_model(step, full_check=True)
    net.zero_grad()
    loss = CRITERIA[loss_fn](net(x), target)
    loss.backward()
    for device in devices:
        out = pfvm.load(step, device)({"x": x.numpy(), "target": target.numpy()})
        np.testing.assert_allclose(out["loss"], loss.item(), rtol=1e-9)
        for name, parameter in net.named_parameters():
            found = parameter.detach().numpy() - out[f"{name}.new"]
            assert parameter.grad is not None
            np.testing.assert_allclose(found, parameter.grad.numpy(), rtol=1e-8, atol=1e-8, err_msg=name)
    return step


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4, padding=1, dilation=1), nn.LeakyReLU(), nn.MaxPool2d(2, stride=2),
        nn.Conv2d(8, 6, 1), nn.AvgPool2d(3, stride=2, padding=1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip
    net[1].running_mean.uniform_(-1, 1)
    net[1].running_var.uniform_(0.5, 2)
    return net


def decoder() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), nn.ELU(),
        nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2), nn.Sigmoid(),
        nn.Conv2d(4, 4, 5, stride=3, padding=2, dilation=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def norms() -> nn.Module:
    return nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4), nn.Mish(), nn.Softplus(), nn.PReLU(4), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Block(nn.Module):
    """A transformer block on embedded tokens."""

    def __init__(self, d: int = 8, heads: int = 2, words: int = 11) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, d), nn.Parameter(torch.randn(6, d))
        self.norm1, self.norm2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), heads
        self.project, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feed, self.classes = nn.Sequential(nn.Linear(d, 16), nn.GELU(), nn.Linear(16, d)), nn.Linear(d, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t = x.shape
        z = self.embed(x) + self.place[:t]
        q, k, v = (a.reshape(n, t, self.heads, -1).transpose(1, 2) for a in self.project(self.norm1(z)).chunk(3, -1))
        mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        z = z + self.out(mixed.transpose(1, 2).reshape(n, t, -1))
        return self.classes(z + self.feed(self.norm2(z))).mean(1)


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.out = kind(4, 5, batch_first=True, bidirectional=True), nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0]).mean(1)


class Upsampled(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.conv, self.mode = nn.Conv2d(2, 3, 3, padding=1), mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(self.conv(x), scale_factor=2, mode=self.mode).square().mean((2, 3))


IMAGE = (2, 3, 9, 9)
XLA_ONLY = ("xla:cpu",)  # ONNX Runtime has no double kernel for these


def cases() -> Any:
    torch.manual_seed(0)
    image, tokens = torch.randn(IMAGE, dtype=DOUBLE), torch.randint(0, 11, (2, 6))
    series, both = torch.randn(2, 5, 4, dtype=DOUBLE), ("pfvm:cpu", "xla:cpu")
    yield "mlp", mlp(), torch.randn(2, 6, dtype=DOUBLE), 3, both, {0: "n"}
    yield "cnn", cnn(), image, 4, both, None
    yield "cnn of any batch", cnn(), image, 4, XLA_ONLY, {0: "n"}
    yield "transposed", decoder(), torch.randn(2, 3, 3, 4, dtype=DOUBLE), None, both, None
    yield "transposed of any size", decoder(), torch.randn(2, 3, 3, 4, dtype=DOUBLE), None, XLA_ONLY, {0: "n", 2: "h"}
    yield "block", Block(), tokens, 5, both, {0: "n", 1: "t"}
    yield "norms", norms(), image, None, both, None
    yield "lstm", Recurrent(nn.LSTM), series, None, XLA_ONLY, None
    yield "gru", Recurrent(nn.GRU), series, None, XLA_ONLY, None
    yield "bilinear", Upsampled("bilinear"), torch.randn(2, 2, 4, 5, dtype=DOUBLE), None, XLA_ONLY, None


@pytest.mark.parametrize(
    ("net", "x", "classes", "devices", "dynamic"),
    [pytest.param(*c[1:], id=c[0], marks=() if c[0] in ("mlp", "block") else pytest.mark.slow) for c in cases()],
)
def test_the_gradients_are_those_of_pytorch(
    net: nn.Module, x: torch.Tensor, classes: int | None, devices: tuple[str, ...], dynamic: dict[int, str] | None
) -> None:
    torch.manual_seed(1)
    target = torch.randint(0, classes, (2,)) if classes else torch.randn(net.to(DOUBLE)(x).shape, dtype=DOUBLE)
    step = assert_gradients(net, x, target, devices, dynamic)
    if dynamic is not None:  # symbolic dims stay open
        dims = step.graph.input[0].type.tensor_type.shape.dim
        assert {i: d.dim_param for i, d in enumerate(dims) if d.dim_param} == dynamic


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_the_optimizers_are_those_of_pytorch(name: str) -> None:
    torch.manual_seed(0)
    net, settings = mlp().to(DOUBLE), {"lr": 0.05, "weight_decay": 0.1}
    x, target = torch.randn(7, 6, dtype=DOUBLE), torch.randn(7, 3, dtype=DOUBLE)
    step = pfvm.grad(exported(net, x), loss_fn="mse", optimizer=name, nesterov=name == "momentum", **settings)
    made: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, **settings),
        "momentum": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True, **settings),
        "adam": lambda p: torch.optim.Adam(p, **settings),
        "adamw": lambda p: torch.optim.AdamW(p, **settings),
    }
    optimizer = made[name](net.parameters())
    manifest = read_manifest(ir.from_proto(step))
    for device in ("pfvm:cpu", "xla:cpu"):
        run, state = pfvm.load(step, device), {}
        copy, optimizer = mlp().to(DOUBLE), None
        copy.load_state_dict(net.state_dict())
        optimizer = made[name](copy.parameters())
        for _ in range(3):
            out = run({"x": x.numpy(), "target": target.numpy(), **state})
            state = {entry.name: out[entry.output] for entry in manifest if entry.output}
            optimizer.zero_grad()
            nn.functional.mse_loss(copy(x), target).backward()
            optimizer.step()
        for parameter, value in copy.named_parameters():
            np.testing.assert_allclose(state[parameter], value.detach().numpy(), rtol=1e-8, atol=1e-9)


def test_the_step_is_an_ordinary_model_with_a_manifest(tmp_path: Path) -> None:
    x = torch.randn(7, 6)
    source, target, looped = (tmp_path / name for name in ("model.onnx", "step.onnx", "loop.onnx"))
    onnx.save(exported(mlp(), x, {0: "n"}), source)
    arguments = ["grad", source, "--loss-fn", "cross_entropy", "--optimizer", "adam", "--lr", "0.02", "-o", target]
    assert cli.run_command(list(map(str, arguments))) == 0
    step = onnx.load(target)
    state = {e.name: (e.kind, e.output) for e in read_manifest(ir.from_proto(step))}
    assert state["0.weight"] == ("param", "0.weight.new")
    assert state["0.weight.exp_avg"] == ("optimizer", "0.weight.exp_avg.new")
    assert state["lr"] == ("hyperparameter", None) and state["step"] == ("hyperparameter", "step.new")
    assert [v.name for v in step.graph.output][:2] == ["loss", "y"]
    local = {(f.domain, f.name) for f in step.functions}  # other operators are calls of functions in the file
    assert all(not node.domain or (node.domain, node.op_type) in local for node in step.graph.node)

    feeds = {"x": x.numpy(), "target": np.arange(7) % 3}
    session = onnxruntime.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_outputs()]
    losses, current = [], dict(feeds)
    for _ in range(20):
        out = dict(zip(names, session.run(None, current)))
        current.update({name: out[new] for name, (_, new) in state.items() if new})
        losses.append(float(out["loss"]))
    assert losses[-1] < 0.7 * losses[0]

    assert cli.run_command(["loop", str(target), "-k", "20", "-o", str(looped)]) == 0
    stacked = {name: np.stack([value] * 20) for name, value in feeds.items()}
    np.testing.assert_allclose(pfvm.load(looped)(stacked)["loss"], losses, rtol=1e-5)


def test_a_model_whose_weights_are_inputs_already_lists_them_once() -> None:
    net, x = mlp(), torch.randn(7, 6)
    model = to_proto(pfvm.export(lambda x: {"y": net(x)}, x))
    step = pfvm.grad(model, loss="y", loss_fn="cross_entropy", lr=0.1)
    onnx.checker.check_model(step, full_check=True)
    names = [value.name for value in step.graph.input]
    assert len(names) == len(set(names))
    feeds = {names[0]: x.numpy(), "target": np.arange(7) % 3}
    expected = pfvm.load(step)(feeds)["loss"]
    for device, tolerance in {"xla:cpu": 1e-5, "mncore2:emu": 0.01}.items():
        np.testing.assert_allclose(pfvm.load(step, device)(feeds)["loss"], expected, rtol=tolerance)


def test_a_loss_that_the_model_has_and_chosen_parameters() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
    g (float[n,2] x) => (float loss, float[n,2] y)
    <float[2] scale = {1,2}, float[2] shift = {0,1}, float[2] unused = {3,4}, float eps = {0.5}>
    { a = Mul (x, scale)  y = Add (a, shift)  e = Add (y, eps)  q = Mul (e, e)  loss = ReduceMean <keepdims=0> (q)
      dead = Mul (unused, unused) }"""
    model = onnx.parser.parse_model(text)
    step = pfvm.grad(model, "loss", lr=0.5, freeze="sh*")
    assert [e.name for e in read_manifest(ir.from_proto(step))] == ["scale", "lr"]
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    gradient = (2 * (x * [1, 2] + [0.5, 1.5]) * x).mean(0) / 2
    out = pfvm.load(step)({"x": x, "lr": np.float32(1)})
    np.testing.assert_allclose(out["scale.new"], [1, 2] - gradient, rtol=1e-6)
    assert [v.name for v in step.graph.output] == ["loss", "y", "scale.new"]
    for wrong, message in (
        ({"loss": "y"}, "'y' is of shape .* a loss is one number"),
        ({"loss": "los"}, "no output 'los'; did you mean 'loss'"),
        ({"loss_fn": "mse"}, "which output is the loss"),
        ({"loss_fn": "hinge"}, "no loss function 'hinge'"),
        ({"optimizer": "adamm"}, "did you mean 'adam"),
        ({"params": "nope*"}, "'nope\\*' matches no float constant"),
        ({"params": "unused"}, "no derivative by 'unused'"),
        ({"freeze": "*"}, "no parameter is left"),
        ({"shapes": {"z": (2,)}}, "no input 'z'"),
        ({"shapes": {"x": (2, 3)}}, "does not fit"),
        ({"momentum": 1.5, "optimizer": "momentum"}, "below 1"),
        ({"learning_rate": 1.0}, "no option 'learning_rate'"),
    ):
        with pytest.raises(OptionError, match=message):
            pfvm.grad(model, **wrong)
    with pytest.raises(InvalidModelError, match="already"):
        pfvm.grad(step, "loss")


def test_what_has_no_derivative_names_the_node() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[4] x) => (float loss) <float[4] w = {1,2,3,4}, float half = {0.5}, uint8 zero = {0}, bool yes = {1},
     int64[2] square = {4,4}, int64[1] axis = {0}>
    { a = Mul (x, w)  OPERATION  loss = ReduceSum <keepdims=0> (b) }"""
    for operation, message in (
        ("[quantize] q = QuantizeLinear (a, half, zero) b = DequantizeLinear (q, half, zero)", "'quantize' rounds"),
        ("[noise] b = Dropout (a, half, yes)", "'noise' draws random numbers"),
        ("m = Expand (a, square) [det] d = Det (m) b = Unsqueeze (d, axis)", "Det 'det'.*no ONNX form"),
    ):
        with pytest.raises(UnsupportedOpError, match=message):
            pfvm.grad(onnx.parser.parse_model(text.replace("OPERATION", operation)), "loss")
