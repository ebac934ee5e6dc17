"""Promise: model.onnx is the one-to-one ATen translation, with readable names and the origin of every node."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.compiler.capture.dtypes import to_numpy  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.compiler.signature import read_manifest  # noqa: E402
from pfvm.runtime.ort import evaluate  # noqa: E402
from torch import nn  # noqa: E402

HERE = pathlib.Path(__file__)
EVAL_STEP = [
    "Reshape",
    "Transpose",
    "Gemm",
    "Relu",
    "Transpose",
    "Gemm",
    "ReduceMax",
    "ArgMax",
    "Equal",
    "Cast",
    "ReduceSum",
]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(1024, 256), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        return self.linear2(torch.relu(self.linear1(x.view(x.shape[0], 1024))))


def make_eval_step() -> Any:
    model = Mlp()

    def eval_step(inp: dict[str, Any]) -> dict[str, Any]:
        y = model(inp["x"])
        return {"correct": (y.max(1)[1] == inp["t"]).sum()}

    return eval_step


SAMPLE = {"x": torch.zeros(125, 1, 32, 32), "t": torch.zeros(125, dtype=torch.int64)}


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def line_with(text: str) -> str:
    """ "file.py:N" of the first line of this file that contains the text."""
    lines = HERE.read_text().splitlines()
    return f"{HERE.name}:{next(i for i, line in enumerate(lines, 1) if text in line)}"


def test_eval_step_is_one_to_one() -> None:
    model = capture(make_eval_step(), SAMPLE).model
    assert op_types(model) == EVAL_STEP
    assert (model.opset_imports[""], model.ir_version) == (20, 10)
    reshape, transpose, *_, reduce_max, _, _, cast, _ = model.graph
    assert reshape.inputs[1].const_value.numpy().tolist() == [125, 1024]
    assert reshape.inputs[1].dtype == ir.DataType.INT64
    assert transpose.inputs[0].name == "model.linear1.weight"
    assert not reduce_max.outputs[0].uses()  # dead, and still there
    assert cast.attributes["to"].as_int() == ir.DataType.INT64


def test_eval_step_with_symbolic_batch_computes_the_shape() -> None:
    step = make_eval_step()
    model = capture(step, SAMPLE, dynamic={"x": {0: "batch"}, "t": {0: "batch"}}).model
    assert op_types(model) == ["Shape", "Gather", "Unsqueeze", "Concat", *EVAL_STEP]
    assert [str(d) for d in model.graph.inputs[0].shape] == ["batch", "1", "32", "32"]
    for n in (1, 3, 200):
        x, t = torch.randn(n, 1, 32, 32), torch.randint(0, 10, (n,))
        result = evaluate(model, {"x": x.numpy(), "t": t.numpy()})
        assert result["correct"] == step({"x": x, "t": t})["correct"].item()


def test_signature_and_manifest() -> None:
    model = capture(make_eval_step(), SAMPLE).model
    weights = [f"model.linear{i}.{k}" for i in (1, 2) for k in ("weight", "bias")]
    assert [v.name for v in model.graph.inputs] == ["x", "t", *weights]
    assert all(name in model.graph.initializers for name in weights)
    assert [v.name for v in model.graph.outputs] == ["correct"]
    assert [(e.name, e.kind, e.source, e.output) for e in read_manifest(model)] == [
        (name, "param", name, None) for name in weights
    ]


def test_export_writes_a_valid_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    pfvm.export(make_eval_step(), SAMPLE, path)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert [n.op_type for n in proto.graph.node] == EVAL_STEP
    assert {p.key for n in proto.graph.node for p in n.metadata_props} == {"pfvm.source", "pfvm.module"}


def test_export_is_deterministic(tmp_path: pathlib.Path) -> None:
    step = make_eval_step()
    for name in ("a.onnx", "b.onnx"):
        pfvm.export(step, SAMPLE, tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_every_node_knows_its_line_and_module() -> None:
    model = capture(make_eval_step(), SAMPLE).model
    origin = {n.op_type: n.metadata_props for n in model.graph}
    assert origin["Reshape"]["pfvm.source"].endswith(line_with("return self.linear2(torch.relu"))
    assert origin["Reshape"]["pfvm.module"] == "model"
    assert origin["Gemm"]["pfvm.module"] == "model.linear2"
    assert origin["ReduceMax"]["pfvm.source"].endswith(line_with('return {"correct"'))
    assert "pfvm.module" not in origin["ReduceMax"]


def test_names_of_nested_inputs_and_outputs() -> None:
    def fn(pair: Any, options: dict[str, Any]) -> Any:
        a, b = pair
        return {"out": [a + b, {"deep": a - b}], "scaled": options["w"] * a}

    exported = capture(fn, ((torch.ones(2), torch.ones(2)), {"w": torch.ones(2)}))
    assert [v.name for v in exported.model.graph.inputs] == ["pair.0", "pair.1", "options.w"]
    assert [v.name for v in exported.model.graph.outputs] == ["out.0", "out.1.deep", "scaled"]


def test_internal_names_give_way_to_the_users() -> None:
    def fn(inp: dict[str, Any]) -> dict[str, Any]:
        return {"add": inp["t"].t(), "x": inp["x"] + 1, "same": inp["x"]}

    exported = capture(fn, {"t": torch.ones(2, 3), "x": torch.ones(2)})
    assert [v.name for v in exported.model.graph.inputs] == ["t", "x"]
    assert [v.name for v in exported.model.graph.outputs] == ["add", "x.out", "same"]
    assert op_types(exported.model) == ["Transpose", "Add", "Identity"]
    names = [o.name for n in exported.model.graph for o in n.outputs]
    assert len({*names, "t", "x"}) == len(names) + 2


def test_result_names_come_from_the_op() -> None:
    model = capture(lambda x: (x.max(1), x.topk(2)), torch.ones(2, 3)).model
    assert [v.name for v in model.graph.outputs] == ["0.0", "0.1", "1.0", "1.1"]
    dead = capture(lambda x: x.max(1)[0], torch.ones(2, 3)).model
    assert next(n for n in dead.graph if n.op_type == "ArgMax").outputs[0].name == "max_1.indices"


def test_nothing_is_cleaned_up_or_shared() -> None:
    def fn(x: Any) -> Any:
        x.exp()  # dead
        return (x + 0) * 1 + x.view(2, 3).view(6).view(2, 3) + x.clone()

    assert op_types(capture(fn, torch.ones(2, 3)).model) == [
        "Exp",
        "Add",
        "Mul",
        "Reshape",
        "Reshape",
        "Reshape",
        "Add",
        "Identity",
        "Add",
    ]


def test_memory_that_batch_norm_reserves_is_no_node() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval()
    assert op_types(capture(net, torch.zeros(1, 1, 2, 2)).model) == ["Conv", "BatchNormalization"]


def test_types_and_shapes_are_on_every_named_value() -> None:
    model = capture(lambda x: (x.double() @ x.double().T).sum(0), torch.ones(3, 4)).model
    assert [(n.outputs[0].dtype.name, list(n.outputs[0].shape)) for n in model.graph if n.op_type == "MatMul"] == [
        ("DOUBLE", [3, 3])
    ]


@pytest.mark.parametrize("freeze", [None, True, False])
def test_freeze_decides_whether_weights_are_inputs(freeze: bool | None) -> None:
    module = nn.Linear(3, 2)
    frozen = freeze is not False
    model = capture(module, torch.ones(1, 3), freeze=freeze).model
    assert [v.name for v in model.graph.inputs] == (["x"] if False else [model.graph.inputs[0].name]) + (
        [] if frozen else ["weight", "bias"]
    )
    assert {"weight", "bias"} <= set(model.graph.initializers)
    assert len(read_manifest(model)) == (0 if frozen else 2)


def test_symbolic_dims_survive_a_transformer_and_a_cnn() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    cnn = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    for module, shape in ((encoder, (3, 5, 8)), (cnn, (3, 3, 8, 8))):
        exported = capture(module, torch.randn(shape), dynamic={input_name(module): {0: "batch"}})
        assert str(exported.model.graph.outputs[0].shape[0]) == "batch"
        for n in (1, 4):
            x = torch.randn(n, *shape[1:])
            (name,) = exported.inputs.tensor_names
            result = evaluate(exported.model, {name: x.numpy()})["output"]
            with torch.no_grad():
                np.testing.assert_allclose(result, module(x).numpy(), rtol=1e-4, atol=1e-5)


def input_name(module: Any) -> str:
    return "src" if isinstance(module, nn.TransformerEncoder) else "input"


def test_sizes_are_computed_in_the_graph() -> None:
    def fn(x: Any) -> Any:
        n, c = x.shape
        return x.reshape(n * c), x.reshape(-1, 1, c).expand(n, 2, c), torch.arange(n), x[: n // 2], n

    exported = capture(fn, torch.ones(4, 3), dynamic={"x": {0: "n"}})
    assert [str(v.shape) for v in exported.model.graph.outputs] == ["[3*n]", "[n,2,3]", "[n]", "[(n//2),3]", "[]"]
    x = torch.randn(7, 3)
    result = evaluate(exported.model, {"x": x.numpy()})
    for name, want in exported.outputs.unpack(fn(x)).items():
        np.testing.assert_array_equal(result[name], to_numpy(want) if isinstance(want, torch.Tensor) else want)
    assert exported.size_outputs == {"4"}


def test_what_wraps_a_module_is_looked_through() -> None:
    module = nn.Linear(3, 2)
    for fn in (torch.compile(module), nn.DataParallel(module), torch.compile(lambda x: module(x))):
        assert op_types(capture(fn, torch.ones(1, 3)).model) == ["Transpose", "Gemm"]


def test_importing_pfvm_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, pfvm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
