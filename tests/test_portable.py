"""`--export stablehlo`: one program for CPUs, GPUs and TPUs, its weights and state beside it, run without the model."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("jax")
torch = pytest.importorskip("torch")

from cli_support import Pfvm, one_line  # noqa: E402
from pfvm import compile as pfvm_compile  # noqa: E402
from pfvm import export, load, optimize  # noqa: E402
from pfvm.compiler.exporter import write_model  # noqa: E402
from pfvm.errors import InputError, InvalidModelError, OptionError, PfvmError, UnsupportedOpError  # noqa: E402
from pfvm.runtime.portable import read_portable  # noqa: E402
from test_cuda import HEADER, NETS, net  # noqa: E402
from torch import nn  # noqa: E402


def written(model: Any, folder: pathlib.Path, **options: Any) -> pathlib.Path:
    """The folder of the model's portable program."""
    source = folder / "model.onnx"
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, source)
    else:
        write_model(model, source)
    target = folder / "program"
    optimize(source, **{"device": "xla:cpu", "export": "stablehlo", "output": target, **options})
    source.unlink()  # nothing of it is needed
    return target


@pytest.mark.parametrize("name", NETS)
def test_nets_are_equal_to_onnx_runtime(name: str, tmp_path: pathlib.Path) -> None:
    program = load(written(net(name), tmp_path), device="xla:cpu")
    expected = load(net(name), "pfvm:cpu")(NETS[name][1])
    actual = program(NETS[name][1])
    assert list(actual) == list(expected)
    for output, value in expected.items():
        assert actual[output].dtype == value.dtype
        np.testing.assert_allclose(actual[output], value, rtol=1e-3, atol=1e-4)


def test_one_program_is_for_all_platforms(tmp_path: pathlib.Path) -> None:
    """A GPU's integer convolution is of doubles, a CPU's products are tiled, a TPU's are whole: all in one module."""
    folder = written(net("quantized"), tmp_path, device="xla:tpu")
    program, text = read_portable(folder), (folder / "program.mlir").read_text()
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert "jax.export" in text or "_platform_index" in text
    kinds = set(re.findall(r"stablehlo\.convolution.* -> tensor<\w*?x(i32|f64)>", text))
    assert kinds == {"i32", "f64"}
    assert "callback" not in text


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8 * 16, 5)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return torch.log_softmax(self.fc(x.view(x.size(0), -1)), 1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.layer(self.embed(x) + torch.arange(x.shape[1])[None, :, None] * 0.01)
        return self.head(x).view(x.shape[0] * x.shape[1], -1)


SIZES = {
    "conv": (Conv, lambda n: torch.randn(n, 3, 8, 8), {0: "n"}),
    "encoder": (Encoder, lambda n: torch.randint(0, 50, (n, n + 3)), {0: "b", 1: "s"}),
}


@pytest.mark.parametrize("name", SIZES)
def test_symbolic_dimensions_stay_open(name: str, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    make, sample, dims = SIZES[name]
    model = make().eval()
    program = load(written(export(model, sample(2), dynamic={"x": dims}), tmp_path), device="xla:cpu")
    assert [d for d in program.inputs[0].shape if isinstance(d, str)] == list(dims.values())
    for size in (1, 2, 5):
        x = sample(size)
        (y,) = program({"x": x.numpy()}).values()
        np.testing.assert_allclose(y, model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_shape_that_is_given_is_fixed(tmp_path: pathlib.Path) -> None:
    folder = written(net("transformer"), tmp_path, shape=("x=2,7,16",))
    program = load(folder, device="xla:cpu")
    program(NETS["transformer"][1])
    with pytest.raises(InputError, match=r"input 'x': dim 1 must be 7"):
        program({**NETS["transformer"][1], "x": np.zeros((2, 5, 16), np.float32)})


def trained() -> tuple[Any, tuple[Any, Any], nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: Any, t: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), t)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step, (torch.randn(5, 8), torch.randint(0, 4, (5,))), model


def test_a_training_step_keeps_its_state_and_donates_it(tmp_path: pathlib.Path) -> None:
    step, batch, model = trained()
    program = load(written(export(step, batch), tmp_path), device="xla:cpu")
    feeds = {"x": batch[0].numpy(), "t": batch[1].numpy()}
    once = program(feeds)["loss"]
    losses = [program.step(feeds)["loss"] for _ in range(4)]
    np.testing.assert_allclose(losses, [step(*batch)["loss"].item() for _ in range(4)], rtol=1e-5)
    assert losses[0] == once == program(feeds)["loss"]  # a call starts from the folder's state
    state = program.state()
    name = next(s.spec.name for s in read_portable(tmp_path / "program").state if s.source == "model.0.weight")
    np.testing.assert_allclose(state[name], model[0].weight.detach(), rtol=1e-4, atol=1e-5)
    manifest = read_portable(tmp_path / "program")
    kinds = {s.spec.name: (s.kind, s.source, s.output) for s in manifest.state}
    assert kinds[name] == ("param", "model.0.weight", f"{name}.new")
    assert manifest.donated == program.updates.keys()

    held = program._state[name]
    program.step(feeds)
    assert held.is_deleted()  # its memory is that of the next value
    program.set_state(state)
    again = program.step(feeds)["loss"]
    np.testing.assert_allclose(again, step(*batch)["loss"].item(), rtol=1e-5)


def test_an_index_out_of_range_changes_nothing(tmp_path: pathlib.Path) -> None:
    step, batch, _ = trained()
    program = load(written(export(step, batch), tmp_path), device="xla:cpu")
    feeds = {"x": batch[0].numpy(), "t": batch[1].numpy()}
    program.step(feeds)
    before = program.state()
    with pytest.raises(InputError, match=r"the index 9 is out of range for axis 1"):
        program.step({**feeds, "t": np.array([0, 1, 9, 2, 0])})
    for name, value in program.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_compiled_function_is_exported_too(tmp_path: pathlib.Path) -> None:
    step, batch, _ = trained()
    options = {"device": "xla:cpu", "export": "stablehlo", "output": tmp_path / "program"}
    compiled = pfvm_compile(step, batch, device="xla:cpu", options=options)
    program = load(tmp_path / "program", device="xla:cpu")
    for _ in range(3):
        loss = program.step({"x": batch[0].numpy(), "t": batch[1].numpy()})["loss"]
        np.testing.assert_allclose(loss, compiled(*batch)["loss"], rtol=1e-6)


def test_the_command(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    step, batch, _ = trained()
    model, folder = tmp_path / "step.onnx", tmp_path / "program"
    write_model(export(step, batch), model)
    made = pfvm("compile", str(model), "--device", "xla:cuda", "--export", "stablehlo", "-o", str(folder))
    assert (made.code, str(folder) in made.out + made.err) == (0, True)
    np.savez(tmp_path / "in.npz", x=batch[0].numpy(), t=batch[1].numpy())
    common = ["--inputs", str(tmp_path / "in.npz"), "--steps", "3", "--device", "xla:cpu", "--outputs"]
    assert pfvm("run", str(model), *common, str(tmp_path / "a.npz")).code == 0
    model.unlink()
    assert pfvm("run", str(folder), *common, str(tmp_path / "b.npz")).code == 0
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)
    assert "loss" in pfvm("run", str(folder), "--device", "xla:cpu", "--seed", "1").out
    wrong = pfvm("run", str(folder), "--device", "xla:cpu", "--shape", "z=5,8")
    assert "shape of 'z': no such input; inputs: 'x', 't'" in one_line(wrong)
    assert "is a folder, and no portable program" in one_line(pfvm("run", str(tmp_path), "--device", "xla:cpu"))
    assert "runs on xla:cpu" in one_line(pfvm("run", str(folder)))
    assert "takes no option 'threads'" in one_line(pfvm("run", str(folder), "--device", "xla:cpu", "--threads", "1"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "pfvm:cpu"}, OptionError, "is for xla devices, not pfvm:cpu: give --device xla:cpu .device="),
        ({"output": "m.onnx"}, OptionError, "writes a folder, and m.onnx is a file"),
        ({"export": "tflite"}, OptionError, "export"),
        ({"mesh": "data=2"}, OptionError, "StableHLO takes no option mesh"),
        ({"bf16": True}, OptionError, "StableHLO takes no option bf16"),
        ({"device": None}, OptionError, "export is for a device: give device="),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], error: type, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(error, match=message):
        written(net("scan"), tmp_path, **options)


def test_a_model_in_memory_needs_a_folder_too() -> None:
    with pytest.raises(OptionError, match=r"writes a folder: give --output FOLDER \(output=\"FOLDER\" in Python\)"):
        optimize(net("scan"), device="xla:cpu", export="stablehlo")


def test_what_needs_the_host_is_named(tmp_path: pathlib.Path) -> None:
    text = """g (float[N] x) => (float[A] y) <float zero = {0}> {
      c = Greater(x, zero) d = Compress(x, c) y = Exp(d) }"""
    with pytest.raises(UnsupportedOpError, match=r"Compress.*shape follows from the data of 'x'.*no host segments"):
        written(onnx.parser.parse_model(HEADER + text), tmp_path)
    text = "g (float[4] x, int64[1] n) => (float[A] y) { y = Reshape(x, n) }"
    with pytest.raises(UnsupportedOpError, match=r"needs the value of 'n'.*every call gives"):
        written(onnx.parser.parse_model(HEADER + text), tmp_path)
    text = "g (float[N] x) => (float[A] y) <int64[2] s = {4, -1}> { r = Reshape(x, s) y = Exp(r) }"
    with pytest.raises(UnsupportedOpError, match=r"the dimension N cannot stay open.*--shape x=8"):
        written(onnx.parser.parse_model(HEADER + text), tmp_path)
    assert not (tmp_path / "program").exists()


def test_folders_that_are_damaged_or_of_others(tmp_path: pathlib.Path) -> None:
    folder = written(net("scan"), tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 9}))
    with pytest.raises(InvalidModelError, match=r"stablehlo 9; this pfvm reads pfvm-stablehlo 1"):
        load(folder, device="xla:cpu")
    (folder / "manifest.json").write_text(json.dumps({**manifest, "arguments": ["lost", *manifest["arguments"]]}))
    with pytest.raises(InvalidModelError, match=r"weights.safetensors lacks 'lost'"):
        load(folder, device="xla:cpu")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "program.stablehlo").write_bytes(b"not a program")
    with pytest.raises(InvalidModelError, match=r"this jax .* cannot read the program"):
        load(folder, device="xla:cpu")
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("")
    with pytest.raises(OptionError, match=r"is not empty and holds no portable program"):
        written(net("scan"), tmp_path, output=other)
    assert (other / "precious.txt").exists()
    load(written(net("scan"), tmp_path), device="xla:cpu")(NETS["scan"][1])  # an older program is replaced


def test_numbers_that_safetensors_has_no_type_for(tmp_path: pathlib.Path) -> None:
    text = """g (float[8] x) => (float[8] y, bfloat16[8] z) <float s = {0.5}> {
      d = DequantizeLinear(q, s) y = Add(x, d) z = Cast<to = 16>(y) }"""
    model = onnx.parser.parse_model(HEADER.replace(": 20", ": 21").replace("ir_version: 9", "ir_version: 10") + text)
    model.graph.initializer.append(onnx.helper.make_tensor("q", onnx.TensorProto.INT4, [8], [-8, 7, 1, 2, 3, -1, 0, 5]))
    program = load(written(model, tmp_path, opt_level=0), device="xla:cpu")
    x = np.arange(8, dtype=np.float32)
    results = program({"x": x})
    np.testing.assert_array_equal(results["y"], load(model, device="pfvm:cpu")({"x": x})["y"])
    assert results["z"].dtype.name == "bfloat16"


def test_random_numbers_differ_from_call_to_call(tmp_path: pathlib.Path) -> None:
    model = onnx.parser.parse_model(HEADER + "g (float[64] x) => (float[64] y) { y = RandomNormalLike(x) }")
    program = load(written(model, tmp_path), device="xla:cpu")
    one, two = (program({"x": np.zeros(64, np.float32)})["y"] for _ in range(2))
    assert not np.array_equal(one, two)


@pytest.mark.slow
def test_neither_onnx_nor_torch_runs_it(tmp_path: pathlib.Path) -> None:
    """Only jax and the folder: what another program, in another language even, has to do."""
    folder = written(net("transformer"), tmp_path)
    code = """
import json, pathlib, struct, sys
import jax, jax.export, numpy as np
jax.config.update("jax_enable_x64", True)
folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
data = (folder / "weights.safetensors").read_bytes()
size = struct.unpack("<Q", data[:8])[0]
kinds = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
values = {name: np.frombuffer(data[8 + size:][slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"])
          for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
for i in manifest["inputs"]:
    values[i["name"]] = np.ones([d if isinstance(d, int) else 3 for d in i["shape"]], np.float32)
program = jax.export.deserialize(bytearray((folder / "program.stablehlo").read_bytes()))
given = [np.zeros(2, np.uint32) if name is None else values[name] for name in manifest["arguments"]]
print(float(np.abs(program.call(*given)[0]).sum()))
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    program = load(folder, device="xla:cpu")
    feeds = {s.name: np.ones([d if isinstance(d, int) else 3 for d in s.shape], np.float32) for s in program.inputs}
    assert float(done.stdout) == pytest.approx(float(np.abs(program(feeds)["y"]).sum()), rel=1e-5)


def test_a_failure_leaves_the_old_program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(net("scan"), tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pfvm.compiler.weights.write_safetensors", full)
    with pytest.raises(PfvmError, match=r"cannot write .*No space left"):
        written(net("scan"), tmp_path)
    load(folder, device="xla:cpu")
    assert not list(tmp_path.glob(".program*"))
