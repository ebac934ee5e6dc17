"""Training steps compile for a TPU, too: one program, state in the memory that it was in, and a call that says no."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("libtpu")

import pfvm  # noqa: E402
from pfvm.errors import NoDeviceError  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

pytestmark = pytest.mark.tpu
FAST = {"effort": "fast"}
LABELS = torch.randint(0, 10, (16,))


def step_of(model: nn.Module, optimizer: Any) -> Any:
    """A classifier's step on {"x", "t"}."""

    def step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step


def written(folder: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """report.json and the program's arguments."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report, json.loads((folder / "arguments.json").read_text(encoding="utf-8"))["arguments"]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def test_an_mlp_s_step_keeps_its_state_where_it_is(tmp_path: pathlib.Path) -> None:
    model = mlp()
    step = step_of(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    batch = {"x": torch.randn(16, 32), "t": LABELS}
    compiled = pfvm.compile(step, batch, device="xla:tpu@v5e:1x1", codegen_dir=tmp_path, device_options=FAST)
    report, arguments = written(tmp_path)
    assert report["vsm_cycles"] > 0 and report["cycles_missing"] is None
    parameters = sum(p.numel() * 4 for p in model.parameters())
    donated = [a for a in arguments if a["donated"]]
    assert {a["kind"] for a in donated} == {"state"}
    assert report["memory"]["alias_size"] >= 3 * parameters  # weights and two moments
    with pytest.raises(NoDeviceError, match="xla:tpu@v5e:1x1 is compiled for, not run on"):
        compiled(batch)
    before = model[0].weight.clone()
    assert torch.equal(before, model[0].weight)


def test_several_steps_in_a_call_are_a_loop_of_known_length(tmp_path: pathlib.Path) -> None:
    model = mlp()
    step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = {"x": torch.randn(16, 32), "t": LABELS}
    cycles = []
    for steps in (None, 8):
        folder = tmp_path / str(steps)
        pfvm.compile(
            step, batch, device="xla:tpu@v5e:1x1", codegen_dir=folder, device_options=FAST, steps_per_call=steps
        )
        report, _ = written(folder)
        assert report["cycles_missing"] is None
        cycles.append(report["vsm_cycles"])
    assert list(report["loops"].values()) == [8]
    assert 5 * cycles[0] < cycles[1] < 12 * cycles[0]


def test_an_early_end_is_a_loop_that_the_device_ends(tmp_path: pathlib.Path) -> None:
    """How often it runs depends on the loss, so there is no total of cycles, and the reason is said."""
    model = mlp()
    step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    spread = {"steps_per_call": 8, "until": "loss < 0.1", "device_options": FAST}
    pfvm.compile(step, {"x": torch.randn(16, 32), "t": LABELS}, "xla:tpu@v5e:1x1", codegen_dir=tmp_path, **spread)
    report, _ = written(tmp_path)
    assert report["vsm_cycles"] is None and "loop" in report["cycles_missing"] and report["modelled_cycles"] > 0
    assert (tmp_path / "scheduled_hlo.txt").read_text(encoding="utf-8").count(" while(") == 1


def test_a_convolution_net_s_step(tmp_path: pathlib.Path) -> None:
    """The gradient of a pool is an operation of the TPU, of which its compiler states no cycles: no total, and why."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    batch = {"x": torch.randn(16, 3, 16, 16), "t": LABELS}
    pfvm.compile(step, batch, device="xla:tpu@v5e:1x1", codegen_dir=tmp_path, device_options=FAST)
    report, _ = written(tmp_path)
    assert report["modelled_cycles"] > 0 and report["flops"] > 0
    assert report["vsm_cycles"] is not None or "select-and-scatter" in report["cycles_missing"]
    assert "scatter(" not in (tmp_path / "scheduled_hlo.txt").read_text(encoding="utf-8").replace("-scatter(", "")


def test_a_transformer_layer_s_step(tmp_path: pathlib.Path) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    optimizer = torch.optim.Adam(layer.parameters())

    def step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = (layer(inp["x"]) ** 2).mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    sample = {"x": torch.randn(4, 32, 64)}
    compiled = pfvm.compile(step, sample, device="xla:tpu@v2:1x1", codegen_dir=tmp_path, device_options=FAST)
    report, _ = written(tmp_path)
    assert report["cycles_missing"] is None and report["time_us"] > report["least_time_us"] > 0
    assert compiled.executable.topology.name == "v2:1x1"


def test_without_a_folder_it_is_compiled_all_the_same() -> None:
    model = mlp().eval()
    compiled = pfvm.compile(model, torch.randn(16, 32), device="xla:tpu@v5e:1x1", device_options=FAST)
    assert "is_scheduled=true" in compiled.executable.program.hlo
    assert compiled.executable.report["vsm_cycles"] > 0
    with pytest.raises(NoDeviceError, match="running needs a TPU v5e"):
        compiled(torch.randn(16, 32))
