"""Promise: `pfvm check --nodes` on mncore2:emu says at which step, and at which node, a result turns."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from cli_support import Pfvm
from emulator_plans import compiled_mlp, feeds_for
from pfvm.compiler.exporter import write_model
from pfvm.compiler.plan.planner import plan
from pfvm.tools.four_way import four_way, relative_l2


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_every_step_of_a_right_plan_agrees(training: bool) -> None:
    model = compiled_mlp(training)
    stages = four_way(model, feeds_for(model))
    assert [(stage.left, stage.right) for stage in stages] == [
        ("pfvm:cpu", "exact"),
        ("plan without layouts", "rounded"),
        ("exact", "rounded"),
    ]
    assert stages[0].node is None and stages[1].node is None
    assert stages[0].compared > 3 and stages[1].compared > stages[0].compared


def test_the_first_node_that_computes_something_else_is_named() -> None:
    model = compiled_mlp(training=False)
    planned = plan(model, {})
    relu = next(node for node in planned.model.graph if node.op_type == "Relu")
    relu.op_type = "Abs"
    stages = four_way(model, feeds_for(model), planned=planned)
    assert stages[0].node is not None and stages[0].node.startswith("Abs") and "elements differ" in stages[0].node
    assert stages[1].node is None  # the emulator does what the plan says


def test_pytorch_is_the_first_step() -> None:
    model = compiled_mlp(training=False)
    feeds = feeds_for(model)
    wrong = {"correct": np.array(99)}
    stages = four_way(model, feeds, wrong)
    assert stages[0].left == "torch" and stages[0].node is not None and "'correct'" in stages[0].node


def test_relative_l2() -> None:
    assert relative_l2([3.0, 4.0], [3.0, 4.5]) == 0.1
    assert relative_l2([0.0], [0.25]) == 0.25
    assert relative_l2([np.inf, 1.0], [np.inf, 1.0]) == 0


FUNCTION = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(20, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
sample = torch.randn(6, 20)

def step(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


def test_a_function_of_pytorch_is_checked_from_its_file(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "net.py"
    file.write_text(FUNCTION, encoding="utf-8")
    loose = ("--rtol", "1e-2", "--atol", "1e-2")
    result = pfvm("check", f"{file}:step", "--device-b", "mncore2:emu", "--nodes", *loose)
    assert result.code == 0, result.err
    assert "torch against pfvm:cpu" in result.out and "plan without layouts against rounded" in result.out
    assert pfvm("check", f"{file}:step", "--device-b", "mncore2:emu").code == 1  # 1-6-9 is not float32


def test_exact_switches_rounding_off(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "net.py"
    file.write_text(FUNCTION)
    assert pfvm("check", f"{file}:step", "--device-b", "mncore2:emu").code == 1
    assert pfvm("check", f"{file}:step", "--device-b", "mncore2:emu", "--exact").code == 0
    assert "--exact is for mncore2:emu" in pfvm("check", f"{file}:step", "--exact").err
    model = tmp_path / "model.onnx"
    write_model(compiled_mlp(training=False), model)
    assert pfvm("check", model, "--device-b", "mncore2:emu", "--exact").code == 0
    assert pfvm("run", model, "--device", "mncore2:emu", "--exact").code == 0
    assert "has no option 'exact'" in pfvm("run", model, "--exact").err
