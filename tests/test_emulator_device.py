"""Promise: `mncore2:emu` is a device like the others, for inference and for training steps; and it says what it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pfvm
import pytest
from pfvm.errors import InputError, OptionError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

TEXT = '<ir_version: 10, opset_import: ["" : 21]> g (float[4,20] x) => (float[4,20] y) { y = Relu (x) }'
OPEN = '<ir_version: 10, opset_import: ["" : 21]> g (float[n,20] x) => (float[n,20] y) { y = Neg (x) }'


def test_a_model_runs_and_numbers_are_those_of_the_format() -> None:
    model = onnx.parser.parse_model(TEXT)
    x = np.linspace(-2, 2, 80, dtype=np.float32).reshape(4, 20)
    rounded = pfvm.load(model, device="mncore2:emu")({"x": x})["y"]
    exact = pfvm.load(model, device="mncore2:emu", exact=True)({"x": x})["y"]
    assert rounded.dtype == exact.dtype == np.float32
    assert np.array_equal(exact, np.maximum(x, 0))
    assert 0 < np.abs(rounded - exact).max() < 2 * 2.0**-10  # 1-6-9
    assert np.array_equal(rounded, pfvm.load(model, device="mncore2:auto")({"x": x})["y"])


def test_it_says_once_that_it_is_emulated(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfvm.runtime.emulator.executable._announced", False)
    for _ in range(2):
        pfvm.load(onnx.parser.parse_model(TEXT), device="mncore2:auto")
    assert capfd.readouterr().err.count("mncore2:auto is emulated") == 1


def test_open_shapes_are_planned_for_what_comes() -> None:
    run = pfvm.load(onnx.parser.parse_model(OPEN), device="mncore2:emu")
    for n in (1, 5, 130):
        x = np.ones((n, 20), np.float32)
        assert np.array_equal(run({"x": x})["y"], -x)


def test_errors_are_those_of_every_device() -> None:
    with pytest.raises(OptionError, match=r"device mncore2:emu has no option 'threads'.*exact"):
        pfvm.load(onnx.parser.parse_model(TEXT), device="mncore2:emu", threads=1)
    run = pfvm.load(onnx.parser.parse_model(TEXT), device="mncore2:emu")
    with pytest.raises(InputError, match="missing input 'x'"):
        run({})


class Net(nn.Module):
    """Two layers with a batch norm's buffers between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 24), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def train(device: str, steps: int, **options: object) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), t)
        loss.backward()
        optimizer.step()
        return loss

    x, t = torch.randn(6, 20), torch.tensor([0, 1, 2, 0, 1, 2])
    run = step if device == "torch" else pfvm.compile(step, (x, t), device=device, device_options=options)
    infer = net if device == "torch" else pfvm.compile(lambda x: net(x), x, device=device, device_options=options)
    losses = []
    for i in range(steps):
        losses.append(float(run(x, t).detach()))
        if i == 2:
            optimizer.param_groups[0]["lr"] = 0.05
        if i == 3:
            with torch.no_grad():
                net.last.bias.add_(0.5)  # the host changes state between calls
    return losses, {name: value.clone() for name, value in net.state_dict().items()}, infer(x).detach()


def test_a_training_step_keeps_its_state_on_the_device() -> None:
    expected, weights, scores = train("torch", 6)
    losses, trained, seen = train("mncore2:emu", 6, exact=True)
    assert np.allclose(losses, expected, rtol=1e-5)
    for name, value in weights.items():
        assert torch.allclose(trained[name], value, rtol=1e-5, atol=1e-6), name
    assert torch.allclose(seen, scores, rtol=1e-5, atol=1e-6)
    rounded, _, _ = train("mncore2:emu", 6)
    assert rounded != losses and np.allclose(rounded, expected, rtol=0.05)
