"""Promise: `pfvm.epoch` takes every row once, in an order that follows from the seed on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.compiler.exporter import to_proto  # noqa: E402
from pfvm.compiler.signature import read_manifest  # noqa: E402
from pfvm.errors import InputError, OptionError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, make_step, twins  # noqa: E402

DEVICES = ["pfvm:cpu", "xla:cpu"]
N, BATCH_SIZE = 43, 5
DATA = next(batches((N, 8)))


def sgd() -> Any:
    model = Mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def numbering(seen: Any) -> Any:
    """A step that says which rows it got, and changes state so that it is a step."""

    def step(inp: Any) -> Any:
        seen.add_(1)
        return inp["row"]

    return step


def orders(device: str, shuffle: bool = True) -> list[Any]:
    run = pfvm.epoch(numbering(torch.zeros(())), {"row": torch.arange(N)}, BATCH_SIZE, device=device, shuffle=shuffle)
    assert run.steps == N // BATCH_SIZE
    return [run(seed) for seed in (0, 1, 1)]


def test_an_order_is_a_permutation_that_follows_from_the_seed() -> None:
    mine = {device: orders(device) for device in DEVICES}
    first, second, again = mine["pfvm:cpu"]
    assert first.shape == (N // BATCH_SIZE, BATCH_SIZE)
    assert len(set(first.flatten().tolist())) == first.numel()
    assert not torch.equal(first, second) and torch.equal(second, again)
    for a, b in zip(mine["pfvm:cpu"], mine["xla:cpu"]):
        assert torch.equal(a, b)
    assert orders("pfvm:cpu", shuffle=False)[0].flatten().tolist() == list(range(40))


def test_without_a_seed_torchs_generator_decides() -> None:
    run = pfvm.epoch(numbering(torch.zeros(())), {"row": torch.arange(N)}, BATCH_SIZE)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(run())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("device", DEVICES)
def test_an_epoch_is_the_steps_of_pytorch_in_that_order(device: str) -> None:
    (model, optimizer), (twin, twin_optimizer) = twins(sgd)
    data = {**DATA, "row": torch.arange(N)}

    def step_of(m: Any, o: Any) -> Any:
        plain = make_step(m, o)
        return lambda inp: {**plain({"x": inp["x"], "t": inp["t"]}), "rows": inp["row"]}

    run, eager = pfvm.epoch(step_of(model, optimizer), data, BATCH_SIZE, device=device), step_of(twin, twin_optimizer)
    for seed in range(2):
        found = run(seed)
        losses = [eager({name: value[rows] for name, value in data.items()})["loss"] for rows in found["rows"]]
        torch.testing.assert_close(found["loss"], torch.stack(losses).detach(), rtol=1e-4, atol=1e-5)
        for each in (optimizer, twin_optimizer):
            each.param_groups[0]["lr"] *= 0.5
    torch.testing.assert_close(model.linear1.weight, twin.linear1.weight, rtol=1e-4, atol=1e-5)


class Dropped(Mlp):
    def forward(self, x: Any, t: Any) -> Any:
        return super().forward(nn.functional.dropout(x, 0.5), t)


def test_masks_are_those_of_single_steps() -> None:
    def make() -> Any:
        model = Dropped()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    (model, optimizer), (twin, twin_optimizer) = twins(make)
    sample = {name: value[:BATCH_SIZE] for name, value in DATA.items()}
    run = pfvm.epoch(make_step(model, optimizer), DATA, BATCH_SIZE, shuffle=False)
    one = pfvm.compile(make_step(twin, twin_optimizer), sample)
    torch.manual_seed(0)
    found = run()["loss"]
    torch.manual_seed(0)
    parts = [{n: v[i : i + BATCH_SIZE] for n, v in DATA.items()} for i in range(0, N - BATCH_SIZE + 1, BATCH_SIZE)]
    torch.testing.assert_close(found, torch.stack([one(part)["loss"] for part in parts]), rtol=1e-5, atol=1e-6)


def test_the_model_is_plain_onnx_with_the_data_as_an_input(tmp_path: Any) -> None:
    model, optimizer = sgd()
    run = pfvm.epoch(make_step(model, optimizer), DATA, BATCH_SIZE, codegen_dir=tmp_path)
    proto = to_proto(run.model)
    onnx.checker.check_model(proto, full_check=True)
    assert {e.name: e.kind for e in read_manifest(run.model)}["x"] == "buffer"
    assert "x" not in {tensor.name for tensor in proto.graph.initializer}
    feeds = {"x": DATA["x"].numpy(), "t": DATA["t"].numpy(), "epoch.seed": np.array(5)}
    expected = pfvm.load(tmp_path / "pfvm.onnx")(feeds)["loss"]
    np.testing.assert_allclose(run(5)["loss"].numpy(), expected, rtol=1e-5)


def test_what_does_not_fit_is_a_named_error() -> None:
    model, optimizer = sgd()
    step = make_step(model, optimizer)
    with pytest.raises(InputError, match=r"'t'.*42 rows.*'x'.*43"):
        pfvm.epoch(step, {"x": DATA["x"], "t": DATA["t"][1:]}, BATCH_SIZE)
    with pytest.raises(InputError, match="fewer than one batch of 50"):
        pfvm.epoch(step, DATA, 50)
    with pytest.raises(OptionError, match="batch_size"):
        pfvm.epoch(step, DATA, 0)
    with pytest.raises(OptionError, match="no training step"):
        pfvm.epoch(lambda inp: model(**inp), DATA, BATCH_SIZE)
