"""Promises of a Context about state: shared tensors, loaded buffers and random numbers, proxies anywhere."""

from __future__ import annotations

import copy
import json
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pfvm.errors import InputError, InvalidModelError, StaleWeightError  # noqa: E402
from pfvm.runtime.mlsdk import Context, MNDevice, get_tensor_name, set_tensor_name_in_module  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def context() -> Context:
    return Context(MNDevice("pfvm:cpu"))


def test_batch_norm_goes_on_in_a_loaded_function(context: Context, tmp_path: pathlib.Path) -> None:
    norm = nn.BatchNorm1d(4)
    twin = copy.deepcopy(norm)
    context.registry.register("norm", norm)
    compiled = context.compile(lambda inp: {"y": norm(inp["x"])}, {"x": torch.zeros(8, 4)}, tmp_path)
    for run in (compiled, context.load_codegen_dir(tmp_path), compiled):
        x = torch.randn(8, 4)
        torch.testing.assert_close(run({"x": x})["y"].cpu(), twin(x).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, twin.running_var)
    assert norm.num_batches_tracked == 3


def test_dropout_in_a_loaded_function_follows_the_seed(context: Context, tmp_path: pathlib.Path) -> None:
    drop = nn.Dropout(0.5)
    x = {"x": torch.ones(64)}
    compiled = context.compile(lambda inp: {"y": drop(inp["x"])}, x, tmp_path)
    loaded = context.load_codegen_dir(tmp_path)
    results = []
    for run in (compiled, loaded):
        torch.manual_seed(3)
        results.append(run(x)["y"].cpu())
    assert torch.equal(*results)
    assert not torch.equal(results[0], loaded(x)["y"])


def test_a_tensor_that_two_modules_share_may_have_two_names(context: Context, tmp_path: pathlib.Path) -> None:
    model = nn.Linear(4, 4, bias=False)
    set_tensor_name_in_module(model, "decoder")
    context.register_param(model.weight)
    set_tensor_name_in_module(nn.ModuleList([model]), "precompute")
    assert get_tensor_name(model.weight) == "precompute@0@weight"
    context.get_registered_value_proxy(model.weight).load_from(torch.ones(4, 4))
    context.register_param(model.weight)
    compiled = context.compile(lambda inp: {"y": model(inp["x"])}, {"x": torch.zeros(1, 4)}, tmp_path)
    for run in (compiled, context.load_codegen_dir(tmp_path)):
        torch.testing.assert_close(run({"x": torch.ones(1, 4)})["y"].cpu(), torch.full((1, 4), 4.0))


def test_results_are_inputs_samples_and_weights_of_others(context: Context, tmp_path: pathlib.Path) -> None:
    double = context.compile(lambda inp: {"h": inp["x"] * 2}, {"x": torch.ones(2, 3)}, tmp_path / "double")
    h = double({"x": torch.ones(2, 3)})["h"]
    add = context.compile(lambda inp: {"y": inp["h"] + h}, {"h": h}, tmp_path / "add")
    torch.testing.assert_close(add({"h": h, "other": torch.ones(7)})["y"].cpu(), torch.full((2, 3), 4.0))
    h.load_from(torch.zeros(2, 3))
    torch.testing.assert_close(add({"h": torch.ones(2, 3)})["y"].cpu(), torch.ones(2, 3))


def test_a_proxy_of_a_weight_shows_every_step(context: Context, tmp_path: pathlib.Path) -> None:
    model = nn.Linear(3, 1)
    context.registry.register("model", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inp: dict[str, Any]) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = model(inp["x"]).sum()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    compiled = context.compile(step, {"x": torch.ones(2, 3)}, tmp_path)
    compiled({"x": torch.ones(2, 3)})
    proxy, before = context.get_registered_value_proxy(model.weight), model.weight.detach().clone()
    for number in (1, 2):
        compiled({"x": torch.ones(2, 3)})
        torch.testing.assert_close(proxy.cpu(), before - 0.2 * number)
    proxy.load_from(before)
    compiled({"x": torch.ones(2, 3)})
    torch.testing.assert_close(model.weight.detach(), before - 0.2)


def test_wrong_calls_are_named(context: Context, tmp_path: pathlib.Path) -> None:
    compiled = context.compile(lambda inp: {"y": inp["x"] + 1}, {"x": torch.ones(2)}, tmp_path)
    with pytest.raises(InputError, match="missing input 'x'"):
        compiled({"z": torch.ones(2)})
    with pytest.raises(InputError, match="takes one dict"):
        compiled(torch.ones(2))
    with pytest.raises(InputError, match=r"'x'.*float64"):
        compiled({"x": torch.ones(2, dtype=torch.float64)})
    with pytest.raises(InputError, match="see compile_automap"):
        context.compile(lambda x: x, torch.ones(2), tmp_path)  # type: ignore[arg-type]


def test_a_folder_that_does_not_fit(context: Context, tmp_path: pathlib.Path) -> None:
    model = nn.Linear(4, 3)
    context.registry.register("model", model)
    context.compile(lambda inp: {"y": model(inp["x"])}, {"x": torch.zeros(1, 4)}, tmp_path)
    other = Context(MNDevice("pfvm:cpu"))
    other.registry.register("model", nn.Linear(4, 5))
    with pytest.raises(StaleWeightError, match=r"'model@weight' is torch.float32 \[5, 4\] here, and .*\[3, 4\]"):
        other.load_codegen_dir(tmp_path)
    file = tmp_path / "signature.json"
    data: Any = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(InvalidModelError, match=r"signature\.json has version 99; this pfvm reads version 1"):
        context.load_codegen_dir(tmp_path)
    file.write_text("{")
    with pytest.raises(InvalidModelError, match=r"signature\.json cannot be read"):
        context.load_codegen_dir(tmp_path)
