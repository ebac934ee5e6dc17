"""Promises of pfvm.compile: same call, same structure, current weights, files, stale frozen weights refused."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import CaptureError, InputError, MissingExtraError, NoDeviceError, OptionError  # noqa: E402
from torch import nn  # noqa: E402

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected.detach(), rtol=1e-4, atol=1e-5)


def test_structure_of_the_result() -> None:
    def fn(inp: dict[str, Any]) -> Any:
        x = inp["x"]
        return {"pair": (x + 1, [x * 2]), "none": None, "name": "y", "rows": x.shape[0], "max": torch.max(x, 1)}

    compiled = pfvm.compile(fn, {"x": X})
    got, want = compiled({"x": X}), fn({"x": X})
    assert got.keys() == want.keys()
    assert_same(got["pair"][0], want["pair"][0])
    assert_same(got["pair"][1][0], want["pair"][1][0])
    assert (got["none"], got["name"], got["rows"]) == (None, "y", 4)
    assert type(got["max"]) is type(want["max"])
    assert got["max"].indices.equal(want["max"].indices)


def test_positional_and_keyword_arguments() -> None:
    compiled = pfvm.compile(lambda x, y: x - y, (X, X + 1))
    assert_same(compiled(X, X * 2), X - X * 2)
    assert_same(compiled(X, y=X * 2), X - X * 2)
    with pytest.raises(InputError, match="'z'"):
        compiled(X, z=X)


def test_numpy_in_torch_out() -> None:
    compiled = pfvm.compile(lambda x: x + 1, X)
    result = compiled(X.numpy())
    assert isinstance(result, torch.Tensor)
    assert_same(result, X + 1)


def test_eval_compiled_before_training_sees_the_trained_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model.eval()
    compiled = pfvm.compile(lambda x: model(x), X)
    before = compiled(X)
    assert_same(before, model(X))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        (model(X) ** 2).sum().backward()
        optimizer.step()
    model.eval()
    assert_same(compiled(X), model(X))
    assert not torch.allclose(before, model(X))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.weight.data.mul_(2),  # not counted by the version counter
        lambda m: m.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}),
        lambda m: setattr(m, "weight", nn.Parameter(torch.ones(2, 3))),
        lambda m: setattr(m.weight, "data", torch.ones(3, 2).t()),  # a strided view
    ],
)
def test_every_way_to_change_a_weight_is_seen(change: Any) -> None:
    model = nn.Linear(3, 2)
    fresh = pfvm.compile(lambda x: model(x), X)
    frozen = pfvm.compile(model, X)
    assert_same(frozen(X), model(X))
    change(model)
    for _ in range(2):
        assert_same(fresh(X), model(X))
    with pytest.raises(InputError, match=r"weight 'weight' changed .*compile again"):
        frozen(X)


def test_strided_weight_is_copied_again_when_it_changes() -> None:
    weight = torch.arange(300.0).reshape(100, 3).t()
    compiled = pfvm.compile(lambda x: x @ weight, X)
    assert_same(compiled(X), X @ weight)
    weight.add_(1)
    assert_same(compiled(X), X @ weight)
    weight.data[1, 17] = -1  # one element, not counted by torch
    assert_same(compiled(X), X @ weight)


@pytest.mark.parametrize("index", [0, 1, 1000, 12345, 29_999])
def test_one_changed_element_of_a_frozen_weight_is_seen(index: int) -> None:
    model = nn.Linear(3, 10_000)
    compiled = pfvm.compile(model, X)
    compiled(X)
    model.weight.data.view(-1)[index] += 1
    with pytest.raises(InputError, match=r"weight 'weight' changed"):
        compiled(X)


def test_large_frozen_weights_are_compared_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from pfvm.runtime import torch_state

    monkeypatch.setattr(torch_state, "_PER_CALL", 4096)
    model = nn.Linear(3, 1000)
    compiled = pfvm.compile(model, X)
    for _ in range(5):
        compiled(X)
    model.weight.data[700, 1] += 1
    with pytest.raises(InputError, match=r"weight 'weight' changed"):
        for _ in range(5):
            compiled(X)


def test_replaced_module_is_followed() -> None:
    nets = {"head": nn.Linear(3, 2)}
    compiled = pfvm.compile(lambda x: nets["head"](x), X)
    nets["head"] = nn.Linear(3, 2)
    assert_same(compiled(X), nets["head"](X))
    nets["head"] = nn.Linear(3, 5)
    with pytest.raises(InputError, match=r"'nets.head.weight' is now .*\[5, 3\].*compile again"):
        compiled(X)
    del nets["head"]
    with pytest.raises(InputError, match=r"'nets.head.weight' is not where it was"):
        compiled(X)


def test_weights_are_not_copied_for_a_call() -> None:
    from pfvm.compiler.capture.export import capture
    from pfvm.runtime.torch_state import TorchState

    model = nn.Linear(3, 2)
    state = TorchState(capture(lambda x: model(x), X))
    assert np.shares_memory(state.feeds()["model.weight"], model.weight.detach().numpy())


def test_compile_and_call_from_several_threads() -> None:
    model = nn.Linear(3, 2)
    expected, wrong = model(X).detach(), []

    def work() -> None:
        for _ in range(3):
            result = pfvm.compile(lambda x: model(x), X)(X)
            if not torch.allclose(result, expected, atol=1e-5):
                wrong.append(result)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert not wrong


def test_frozen_weights_are_folded() -> None:
    compiled = pfvm.compile(nn.Linear(3, 2), X)
    assert [n.op_type for n in compiled.model.graph] == ["Gemm"]
    assert len(compiled.model.graph.inputs) == 1


def test_module_and_line_survive_the_passes() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    compiled = pfvm.compile(lambda x: model(x), X)
    modules = {n.op_type: n.metadata_props["pfvm.module"] for n in compiled.model.graph}
    assert modules == {"Gemm": "model.0", "Relu": "model.1"}
    assert all(
        n.metadata_props["pfvm.source"].rpartition(":")[0].endswith("test_compiled_function.py")
        for n in compiled.model.graph
    )


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "batch"}, "t": {0: "batch"}}])
def test_evaluation_step_compiles_to_seven_nodes(dynamic: Any) -> None:
    model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))

    def eval_step(inp: dict[str, Any]) -> dict[str, Any]:
        y = model(inp["x"].view(inp["x"].shape[0], 1024))
        return {"correct": (y.max(1)[1] == inp["t"]).sum()}

    sample = {"x": torch.randn(125, 1, 32, 32), "t": torch.randint(0, 10, (125,))}
    compiled = pfvm.compile(eval_step, sample, dynamic=dynamic)
    expected = ["Reshape", "Gemm", "Relu", "Gemm", "ArgMax", "Equal", "ChainerCastReduceSum"]
    assert [n.op_type for n in compiled.model.graph] == expected
    assert compiled(sample)["correct"] == eval_step(sample)["correct"]


def test_symbolic_batch() -> None:
    model = nn.Linear(3, 2)
    compiled = pfvm.compile(lambda x: model(x.view(x.shape[0], -1)), X, dynamic={"x": {0: "batch"}})
    for n in (1, 2, 9):
        x = torch.randn(n, 3)
        assert_same(compiled(x), model(x))


def test_artifacts_and_option_file(tmp_path: pathlib.Path) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"args": ["--out_onnx=<codegen_dir>/copy.onnx"]}))
    folder = tmp_path / "artifacts"
    pfvm.compile(lambda x: x.clone() + 1, X, codegen_dir=folder, options=str(options))
    assert {p.name for p in folder.iterdir()} == {"model.onnx", "pfvm.onnx", "passes.json", "copy.onnx"}
    types = {p.name: [n.op_type for n in onnx.load(p).graph.node] for p in folder.glob("*.onnx")}
    assert types["model.onnx"] == ["Identity", "Add"]
    assert types["pfvm.onnx"] == types["copy.onnx"] == ["Add"]
    assert json.loads((folder / "passes.json").read_text())["passes"]


def test_a_refused_function_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CaptureError):
        pfvm.compile(lambda x: x * x.sum().item(), X, codegen_dir=tmp_path / "artifacts")
    assert not list(tmp_path.iterdir())


def test_options_as_mapping() -> None:
    compiled = pfvm.compile(lambda x: x.t().t(), X, options={"opt_level": 0})
    assert [n.op_type for n in compiled.model.graph] == ["Transpose", "Transpose"]
    with pytest.raises(OptionError, match="nonsense"):
        pfvm.compile(lambda x: x, X, options={"nonsense": 1})
    for name, value in {"shape": "x=2,3", "explain": True}.items():  # of files and of the command line
        with pytest.raises(OptionError, match=f"^leave '{name}' out"):
            pfvm.compile(lambda x: x, X, options={name: value, "device": "pfvm:cpu"})


def test_wrong_inputs() -> None:
    compiled = pfvm.compile(lambda inp: {"y": inp["x"] * inp["k"]}, {"x": X, "k": 2})
    assert_same(compiled({"x": X, "k": 2})["y"], X * 2)
    assert_same(compiled({"k": 2, "x": X})["y"], X * 2)  # keys in any order
    with pytest.raises(InputError, match=r"^missing input 'k'$"):
        compiled({"x": X})
    with pytest.raises(InputError, match=r"^missing input 'x'; 'z', which was given, is not in the example$"):
        compiled({"z": X, "k": 2})
    with pytest.raises(InputError, match=r"^unknown input 'X': the example has 'x', 'k'; did you mean 'x'\?$"):
        compiled({"x": X, "k": 2, "X": X})
    with pytest.raises(InputError, match=r"^the argument is a Tensor; expected a dict with 'x', 'k'"):
        compiled(X)
    with pytest.raises(InputError, match=r"^missing argument: expected a dict with 'x', 'k'$"):
        compiled()
    with pytest.raises(InputError, match=r"^2 arguments were given"):
        compiled({"x": X, "k": 2}, X)
    with pytest.raises(InputError, match=r"input 'x' is a list; expected a tensor"):
        compiled({"x": [X], "k": 2})
    with pytest.raises(InputError, match=r"'k' is a constant .* is a torch.Tensor now"):
        compiled({"x": X, "k": X})
    with pytest.raises(InputError, match=r"constant .* it was 2"):
        compiled({"x": X, "k": 3})
    for wrong, kind in ((X.to_sparse(), "torch.sparse_coo"), (X.to("meta"), "meta")):
        with pytest.raises(InputError, match=rf"input 'x' is a {kind} tensor"):
            compiled({"x": wrong, "k": 2})
    with pytest.raises(InputError, match=r"'x'.*float64"):
        compiled({"x": X.double(), "k": 2})
    with pytest.raises(InputError, match="'x'"):
        compiled({"x": X[:2], "k": 2})


def test_wrong_arguments_and_lists() -> None:
    compiled = pfvm.compile(lambda x, y: x - y[0] - y[1], (X, [X, X]))
    assert_same(compiled(X, [X, X]), -X)
    with pytest.raises(InputError, match=r"^missing argument 'y'"):
        compiled(X)
    with pytest.raises(InputError, match=r"^missing argument 'x'$"):
        compiled(y=[X, X])
    with pytest.raises(InputError, match=r"^argument 'x' is given twice"):
        compiled(X, [X, X], x=X)
    with pytest.raises(InputError, match=r"^input 'y' has 1 elements; in the example it had 2"):
        compiled(X, [X])
    with pytest.raises(InputError, match=r"^input 'y' is a tuple; expected a list of 2"):
        compiled(X, (X, X))


def test_arguments_of_wrong_kinds_are_named_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OptionError, match=r"a device is a string .*did you mean 'pfvm:cpu'"):
        pfvm.compile(lambda x: x, X, device=torch.device("cpu"))
    with pytest.raises(OptionError, match="codegen_dir is a folder's path, not 3"):
        pfvm.compile(lambda x: x, X, codegen_dir=3)
    (tmp_path / "file").write_text("")
    with pytest.raises(pfvm.PfvmError, match=r"cannot make the artifacts directory .*file: File exists"):
        pfvm.compile(lambda x: x, X, codegen_dir=tmp_path / "file")


def test_unknown_and_unbuilt_devices() -> None:
    with pytest.raises(OptionError, match="pfvm:cpu"):
        pfvm.compile(lambda x: x, X, device="toaster")
    with pytest.raises((NoDeviceError, MissingExtraError), match="xla:tpu"):
        pfvm.compile(lambda x: x, X, device="xla:tpu")


def test_xla_gives_the_same() -> None:
    pytest.importorskip("jax")
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    compiled = pfvm.compile(lambda x: model(x), X, device="xla:cpu")
    assert_same(compiled(X), model(X))
    with torch.no_grad():
        model[0].weight.add_(1)
    assert_same(compiled(X), model(X))
