"""Promises of `pfvm bench --tpu`: the same net twice, as an ONNX file and by hand, by one estimate; where there is no
total there is no ratio. The nets by hand compute what the ONNX files do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

from pfvm.errors import MissingExtraError, OptionError, PfvmError  # noqa: E402
from pfvm.tools.bench import tpu  # noqa: E402
from pfvm.tools.bench.baselines import exported_nets, torch_nets, tpu_nets  # noqa: E402
from pfvm.tools.bench.tpu import TpuRequest, Yardstick, bench_tpu, compare  # noqa: E402
from test_bench_baselines import WEIGHTS, Given, linear  # noqa: E402
from tpu_support import mlp, model  # noqa: E402

FAST = TpuRequest(effort="fast")


def by_hand(a: Any, b: Any, x: Any) -> Any:
    return jax.nn.relu(x @ a) @ b


def forms(dtype: str) -> dict[str, Any]:
    """Of `mlp()`."""
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((256, 512), (512, 64), (128, 256))]
    return {"plain": tpu_nets.lowered((by_hand, tuple(types)))}


@pytest.mark.tpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_mlp_from_onnx_takes_what_it_takes_by_hand(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("libtpu")
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    monkeypatch.setattr(Yardstick, "shape", "x=128,256")
    row = compare(tmp_path / "mlp.onnx", Yardstick("mlp", "v5e:1x1", 128, dtype), lambda: forms(dtype), FAST)
    assert row["jax"]["form"] == "plain" and row["pfvm"]["missing"] is None
    assert row["pfvm"]["flops"] == row["jax"]["forms"]["plain"]["flops"] == 2 * 128 * 512 * (256 + 64)
    assert row["ratio"] == row["pfvm"]["cycles"] / row["jax"]["forms"]["plain"]["cycles"]
    assert 0.9 < row["ratio"] < 1.3


@pytest.mark.tpu
def test_what_has_no_total_has_no_ratio_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libtpu")
    onnx.save(model("g (float[128,256] x) => (float[128,256] y) { y, i = TopK(x, k) }"), tmp_path / "m.onnx")
    sorting = onnx.load(tmp_path / "m.onnx")
    sorting.graph.initializer.append(onnx.numpy_helper.from_array(np.array([256]), "k"))
    onnx.save(sorting, tmp_path / "m.onnx")
    monkeypatch.setattr(tpu, "YARDSTICKS", (Yardstick("m", "v5e:1x1", 128, "float32"),))
    monkeypatch.setattr(tpu, "_exported", lambda net, folder: tmp_path / "m.onnx")
    monkeypatch.setattr(tpu, "_forms", lambda each: forms(each.dtype))
    monkeypatch.setattr(Yardstick, "shape", "x=128,256")
    with pytest.raises(PfvmError, match="no total of m"):
        bench_tpu(FAST._replace(json_file=tmp_path / "r.json"))
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert row["ratio"] is None and "sort" in row["pfvm"]["missing"]
    assert "m, float32, pfvm: no total: " in capsys.readouterr().err


def known(cycles: int | None, modelled: int = 0) -> dict[str, Any]:
    """What is found of a program."""
    missing = "the compiler states no cycles for select-and-scatter" if cycles is None else None
    time = None if cycles is None else cycles / 0.7
    return {"cycles": cycles, "time_us": time, "missing": missing, "modelled": cycles or modelled}


@pytest.mark.parametrize(
    ("forms", "form", "ratio"),
    [
        ({"a": known(100), "b": known(None, 90)}, "b", "at most 0.889"),  # b takes more than 90
        ({"a": known(100), "b": known(None, 110)}, "a", "0.800"),  # and here more than a
        ({"a": known(None, 200), "b": known(None, 160)}, "b", "at most 0.500"),
        ({"a": known(None, 0)}, "a", "-"),
    ],
)
def test_a_form_by_hand_without_a_total_is_a_bound_of_the_ratio(
    forms: dict[str, Any], form: str, ratio: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    each = Yardstick("vgg19", "v2:1x1", 100, "bfloat16", training=True)
    monkeypatch.setattr(tpu, "YARDSTICKS", (each,))
    monkeypatch.setattr(tpu, "_exported", lambda name, folder: folder / name)
    monkeypatch.setattr(tpu, "_ours", lambda *args: known(80))
    monkeypatch.setattr(tpu, "_forms", lambda each: forms)
    monkeypatch.setattr(tpu, "_by_hand", lambda found, *args: found)
    monkeypatch.setattr(tpu.machine, "versions", lambda engines: {})
    monkeypatch.setattr(tpu, "_libtpu", lambda: "0")
    monkeypatch.setenv("COLUMNS", "200")
    if ratio == "-":
        with pytest.raises(PfvmError, match="no total of vgg19 training"):
            bench_tpu(FAST)
    else:
        (row,) = bench_tpu(FAST)["rows"]
        assert (row["jax"]["form"], row["jax"]["at_least"]) == (form, ratio.startswith("at most"))
        assert row["clock_hz"] == pytest.approx(46e12 / 2 / (2 * 128 * 128))
    printed = capsys.readouterr()
    assert ratio in printed.out and "vgg19 training" in printed.out
    for name, found in forms.items():
        line = f"vgg19 training, bfloat16, {name}: no total: the compiler states no cycles for select-and-scatter"
        assert (line in printed.err) == (found["cycles"] is None)


def test_a_net_that_there_is_not_is_named() -> None:
    with pytest.raises(OptionError, match="bench --tpu alexnet: no such net; there are resnet50, bert, vgg19"):
        bench_tpu(TpuRequest(["alexnet"]))


def test_without_libtpu_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise tpu.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tpu.machine, "versions", lambda engines: {})
    monkeypatch.setattr(tpu.importlib.metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'pfvm\[tpu\]'"):
        bench_tpu(TpuRequest(["bert"]))


# ---- the nets by hand


@pytest.mark.parametrize("net", tpu_nets.NETS)
def test_all_forms_of_a_net_give_the_same_type(net: str) -> None:
    found = {str(jax.eval_shape(function, *types)) for function, types in tpu_nets.NETS[net](2, "bfloat16").values()}
    assert len(found) == 1 and "bfloat16" in found.pop()


def of_resnet50(order: str) -> tuple[Any, Iterator[np.ndarray], Any]:
    """The module, its weights in the order in which the net asks for them, and the images, which are asked for last."""
    module, x = torch_nets.make("resnet50")
    turned = (a if a.ndim < 4 or order == "NHWC" else a.transpose(3, 2, 0, 1) for a in WEIGHTS["resnet50"](module))
    return module, itertools.chain(turned, [images(x, order)]), x


def of_vgg19(order: str) -> tuple[Any, Iterator[np.ndarray], Any]:
    module, x = exported_nets.vgg19()
    return module, itertools.chain(vgg19_arrays(order, module.parameters()), [images(x, order)]), x


def vgg19_arrays(order: str, tensors: Iterable[torch.Tensor]) -> Iterator[np.ndarray]:
    """Weights and biases, or their gradients, as the net by hand has them."""
    last = 0
    for each in tensors:
        if each.ndim == 4:
            last = each.shape[0]
            yield (each.permute(2, 3, 1, 0) if order == "NHWC" else each).numpy()
        elif each.ndim == 1:
            yield each.numpy()
        elif order == "NHWC" and last:  # its columns are channels, rows, columns
            yield each.reshape(each.shape[0], last, -1).permute(2, 1, 0).reshape(-1, each.shape[0]).numpy()
            last = 0
        else:
            yield each.T.numpy()


def images(x: Any, order: str) -> np.ndarray:
    return (x.permute(0, 2, 3, 1) if order == "NHWC" else x).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("net", ["resnet50", "vgg19"])
def test_the_nets_of_images_are_those_of_pytorch(net: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        module, arrays, x = {"resnet50": of_resnet50, "vgg19": of_vgg19}[net](order)
        monkeypatch.setattr(tpu_nets, "Types", lambda dtype: Given(arrays))
        monkeypatch.setattr(tpu_nets, "_ORDERS", {order: tpu_nets._ORDERS[order]})
        ((function, arguments),) = tpu_nets.NETS[net](1, "float32").values()
        assert next(arrays, None) is None
        close(jax.jit(function)(*arguments), module(x).numpy())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_vgg19_by_hand_is_trained_as_by_pytorch(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and the gradients of all parameters, of images of 32 × 32. In double: in float32 the last bits may
    decide which of two numbers is a pool's largest."""
    module, step, batch = exported_nets.vgg19_training(32)
    module.double()
    batch["x"] = batch["x"].double()
    wanted = step(batch)
    given = itertools.chain(vgg19_arrays(order, [p.detach() for p in module.parameters()]), [images(batch["x"], order)])
    monkeypatch.setattr(tpu_nets, "SIZE", 32)
    monkeypatch.setattr(tpu_nets, "Types", lambda dtype: Given(given))
    monkeypatch.setattr(tpu_nets, "_ORDERS", {order: tpu_nets._ORDERS[order]})
    with jax.enable_x64(True):
        (form,) = tpu_nets.vgg19(2, "float64").values()
        function, (params, x, _) = tpu_nets.training(form)
        assert next(given, None) is None
        loss, gradients = jax.jit(function)(params, x, batch["t"].numpy().astype(np.int32))
    close(loss, wanted.pop("loss").detach().numpy())
    for found, expected in zip(jax.tree.leaves(gradients), vgg19_arrays(order, wanted.values()), strict=True):
        close(found, expected)


@pytest.mark.slow
def test_bert_is_that_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    module, ids = torch_nets.make("bert")
    with torch.no_grad():
        attentions = [block.attention for block in module.blocks]
        apart = (array for each in attentions for part in (each.q, each.k, each.v) for array in linear(part))
        arrays = itertools.chain(WEIGHTS["bert"](module), apart)
        monkeypatch.setattr(tpu_nets, "Types", lambda dtype: Given(arrays))
        found = tpu_nets.bert(1, "float32")
        assert next(arrays, None) is None
        expected = module(ids).numpy()
    for function, (params, _) in found.values():
        close(jax.jit(function)(params, ids.numpy().astype(np.int32)), expected)


def close(actual: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
