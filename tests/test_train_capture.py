"""Promises: a whole training step is one graph; its state is found, named and paired, and nothing is baked in."""

from __future__ import annotations

import copy
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.compiler.signature import read_manifest  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, largest_step_error, make_step  # noqa: E402

BATCH = next(batches())


def manifest(step: Any, sample: Any = BATCH) -> dict[str, tuple[str, str, str | None]]:
    return {e.name: (e.kind, e.source, e.output) for e in read_manifest(capture(step, sample).model)}


def test_state_is_named_and_paired() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = manifest(make_step(model, optimizer))
    assert found["linear1.weight"] == ("param", "model.linear1.weight", "linear1.weight.new")
    assert found["linear1.weight.momentum"][0] == "optimizer"
    assert found["linear1.weight.momentum"][2] == "linear1.weight.momentum.new"
    assert found["optimizer.lr"] == ("hyperparameter", "optimizer.lr", None)
    assert not optimizer.state, "no step was taken"


def test_lazily_created_state_starts_from_its_first_value() -> None:
    model = Mlp()
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.25)
    exported = capture(make_step(model, optimizer), BATCH)
    assert exported.model.graph.initializers["linear1.bias.sum"].const_value.numpy().tolist() == [0.25] * 16
    rprop = torch.optim.Rprop(model.parameters(), lr=0.5)
    exported = capture(make_step(model, rprop), BATCH)
    assert exported.model.graph.initializers["linear1.bias.step_size"].const_value.numpy().tolist() == [0.5] * 16


class Counting(torch.optim.Optimizer):
    """A hand-written one: a Python step count, state made from a gradient's shape, `.data` everywhere."""

    def __init__(self, params: Any, lr: float = 0.1, beta: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(p.grad.data)
                state["step"] += 1
                state["mean"] = group["beta"] * state["mean"] + p.grad.data
                p.data.add_(torch.sign(state["mean"]), alpha=-group["lr"] / state["step"] ** 0.5)


def test_python_numbers_of_an_optimizer_are_state() -> None:
    model = Mlp()
    optimizer = Counting(model.parameters())
    step = make_step(model, optimizer)
    found = manifest(step)
    assert found["linear1.weight.step"] == ("optimizer", "model.linear1.weight.step", "linear1.weight.step.new")
    assert found["linear1.weight.mean"][2] == "linear1.weight.mean.new"
    assert largest_step_error(step, batches()) < 2e-5


class Clones(Counting):
    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("first", p.grad.clone())
            p.sub_(self.state[p]["first"])


def test_state_made_from_data_is_refused() -> None:
    model = Mlp()
    step = make_step(model, Clones(model.parameters()))
    with pytest.raises(CaptureError, match=r"makes the state 'first' of 'model\.linear1\.weight' from data.*one step"):
        capture(step, BATCH)
    step(BATCH)
    capture(step, BATCH)


def test_gradients_are_state_only_where_a_step_reads_them() -> None:
    model = Mlp()

    def accumulate(inp: Any) -> Any:
        loss = model(**inp)["loss"]
        loss.backward()
        return {"loss": loss}

    found = manifest(accumulate)
    assert found["linear1.weight.grad"][2] == "linear1.weight.grad.new"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for set_to_none in (True, False):
        model(**BATCH)["loss"].backward()

        def step(inp: Any, to_none: bool = set_to_none) -> Any:
            optimizer.zero_grad(set_to_none=to_none)
            return accumulate(inp) if optimizer.step() is None else None

        def plain(inp: Any, to_none: bool = set_to_none) -> Any:
            optimizer.zero_grad(set_to_none=to_none)
            result = accumulate(inp)
            optimizer.step()
            return result

        assert not any(name.endswith(".grad") for name in manifest(plain))


def test_buffers_may_be_replaced() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    module = Average()
    before = module.mean
    assert manifest(lambda inp: module(inp["x"]))["mean"] == ("buffer", "module.mean", "mean.new")
    assert module.mean is before
    assert largest_step_error(lambda inp: {"y": module(inp["x"])}, batches()) < 1e-6


def test_a_counter_that_would_be_baked_in_is_refused() -> None:
    model, count = Mlp(), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = make_step(model, optimizer)

    def step(inp: Any) -> Any:
        count[0] += 1
        loss = plain(inp)["loss"]
        return {"loss": loss * count[0]}

    with pytest.raises(CaptureError, match=r"test_train_capture\.py:\d+: .*counter"):
        capture(step, BATCH)
    assert count == [0]


def test_state_that_shares_memory_is_refused() -> None:
    whole = torch.zeros(4)
    part = whole[:2]

    def step(inp: Any) -> Any:
        part.add_(1)
        return whole + inp["x"].sum()

    with pytest.raises(CaptureError, match=r"'(whole|part)' and '(whole|part)' share memory"):
        capture(step, BATCH)


def test_a_step_runs_in_plain_onnx_runtime(tmp_path: pathlib.Path) -> None:
    """In a process without pfvm and torch, its own outputs fed back as the next step's inputs."""
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    pfvm.compile(make_step(model, optimizer), BATCH, codegen_dir=tmp_path)
    np.savez(tmp_path / "batch.npz", **{k: v.numpy() for k, v in BATCH.items()})
    program = """
import json, sys, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1] + "/pfvm.onnx", providers=["CPUExecutionProvider"])
state = json.loads(session.get_modelmeta().custom_metadata_map["pfvm.state"])["state"]
feeds, losses = dict(np.load(sys.argv[1] + "/batch.npz")), []
for _ in range(4):
    results = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))
    feeds |= {entry["name"]: results[entry["output"]] for entry in state if entry["output"]}
    losses.append(float(results["loss"]))
assert not {"pfvm", "torch"} & set(sys.modules)
print(json.dumps(losses))
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    step = make_step(model, optimizer)
    assert json.loads(done.stdout) == pytest.approx([step(BATCH)["loss"].item() for _ in range(4)], rel=2e-5)


def test_nothing_of_the_users_changes() -> None:
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0, foreach=True)
    step = make_step(model, optimizer)
    step(BATCH)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    before = copy.deepcopy((optimizer.state_dict(), model.state_dict(), scheduler.state_dict()))
    tensors = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    versions = [(id(t), t._version, t.data_ptr(), None if t.grad is None else id(t.grad)) for t in tensors]

    def fails(inp: Any) -> Any:
        loss = step(inp)["loss"]
        return loss if loss > 0 else -loss

    capture(step, BATCH)
    with pytest.raises(CaptureError):
        capture(fails, BATCH)
    assert versions == [(id(t), t._version, t.data_ptr(), None if t.grad is None else id(t.grad)) for t in tensors]
    after = (optimizer.state_dict(), model.state_dict(), scheduler.state_dict())
    assert str(before) == str(after)
    assert optimizer.param_groups[0]["foreach"] is True
    assert type(optimizer.param_groups[0]["weight_decay"]) is int
