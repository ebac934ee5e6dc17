"""Promise: codegen_dir also holds what the device's compiler decided, made without changing anything."""

from __future__ import annotations

import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402
from pfvm.compiler.plan.text import parse_l3ir  # noqa: E402
from pfvm.errors import PfvmError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import classifier_step  # noqa: E402

STAGES = {"model.onnx", "pfvm.onnx", "passes.json"}
XLA = STAGES | {"l3ir.txt", "l3ir_stripped.onnx.zst", "report.json"}
PLAN = XLA | {"l3ir_index.json", "trace.json", "layout_spec.json", "gemm_layout_spec.json"}
FILES = {"pfvm:cpu": STAGES, "xla:cpu": XLA, "mncore2:emu": PLAN}
BATCH = {"x": torch.linspace(-1, 1, 40).reshape(5, 8), "t": torch.tensor([0, 1, 2, 3, 1])}


def net(dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("device", FILES)
def test_an_inference_function(device: str, tmp_path: pathlib.Path) -> None:
    model = net(0).eval()
    pfvm.compile(lambda inp: {"y": model(inp["x"])}, {"x": BATCH["x"]}, device=device, codegen_dir=tmp_path)
    assert names(tmp_path) == FILES[device]


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("device", FILES)
def test_a_training_step_is_not_taken(device: str, steps: int | None, tmp_path: pathlib.Path) -> None:
    model = net(0 if device == "mncore2:emu" else 0.5)
    optimizer = torch.optim.Adam(model.parameters())

    weights, generator = [p.clone() for p in model.parameters()], torch.get_rng_state()
    compiled = pfvm.compile(
        classifier_step(model, optimizer), BATCH, device=device, codegen_dir=tmp_path, steps_per_call=steps
    )
    assert names(tmp_path) == FILES[device]
    assert all(torch.equal(now, before) for now, before in zip(model.parameters(), weights))
    assert torch.equal(torch.get_rng_state(), generator)
    assert not optimizer.state_dict()["state"]
    if device != "pfvm:cpu":
        assert parse_l3ir((tmp_path / "l3ir.txt").read_text())
        assert json.loads((tmp_path / "report.json").read_text())["emulated"] is (device == "mncore2:emu")
    if device == "xla:cpu" and steps is None:
        compiled(BATCH)
        assert len(compiled.executable.programs()) == 1  # what is described is what runs


def test_what_the_device_refuses_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PfvmError):
        pfvm.compile(lambda x: torch.nonzero(x), torch.ones(3), device="mncore2:emu", codegen_dir=tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_two_devices_are_one_too_many() -> None:
    with pytest.raises(pfvm.errors.OptionError, match="device='pfvm:cpu', and the argument device='xla:cpu'"):
        pfvm.compile(lambda x: x + 1, torch.ones(3), device="xla:cpu", options={"device": "pfvm:cpu"})
