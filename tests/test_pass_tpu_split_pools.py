"""tpu-split-pools: forward and backward through convolutions and pools, the same numbers whatever the sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from pfvm.compiler.driver import compile_model
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import parse
from pfvm.runtime.device import load_executable
from pfvm.runtime.ort import evaluate
from support import ops, run_passes

PASS = "tpu-split-pools"
ONES = (1, 1, 1, 1)


class Step:
    """Nodes of a forward and backward pass as capture writes them, from the last layer to the first."""

    def __init__(self, image: tuple[int, ...]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": image}
        self.results: list[str] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, op_type: str, *inputs: str, to: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [to], **attributes))
        return to

    def constant(self, name: str, numbers: object, dtype: type = np.int64) -> str:
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(numbers, dtype), name))
        return name

    def conv(self, i: int, source: str, weight: tuple[int, ...], pads: tuple[int, ...], bias: bool) -> str:
        self.shapes |= {f"w{i}": weight, **({f"b{i}": weight[:1]} if bias else {})}
        return self.op("Conv", source, f"w{i}", *([f"b{i}"] if bias else []), to=f"c{i}", pads=pads)

    def conv_back(self, i: int, source: str, gradient: str, pads: tuple[int, ...], bias: bool, needs: bool) -> str:
        if needs:
            self.op("ConvTranspose", gradient, f"w{i}", to=f"dx{i}", pads=pads)
        self.op("Transpose", source, to=f"s{i}", perm=[1, 0, 2, 3])
        self.op("Transpose", gradient, to=f"t{i}", perm=[1, 0, 2, 3])
        self.op("Conv", f"s{i}", f"t{i}", to=f"v{i}", pads=pads)
        self.results.append(self.op("Transpose", f"v{i}", to=f"dw{i}", perm=[1, 0, 2, 3]))
        if bias:
            self.results.append(self.op("ReduceSum", gradient, "axes", to=f"db{i}", keepdims=0))
        return f"dx{i}"

    def relu_back(self, i: int, result: str, gradient: str) -> str:
        self.op("LessOrEqual", result, "none", to=f"off{i}")
        return self.op("Where", f"off{i}", "none", gradient, to=f"dc{i}")


def step(
    image: tuple[int, ...], weights: tuple[tuple[int, ...], ...], *, pads: tuple[tuple[int, ...], ...] = (ONES, ONES),
    relu: bool = True, bias: bool = True, of_image: bool = True, dtype: int = TensorProto.FLOAT,
    pool: dict[str, list[int]] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """[conv → relu →] conv → relu → pool, and the gradients with respect to weights, biases and images."""
    made, sources, last = Step(image), [], "x"
    size = list(image[2:])
    for i, (weight, own) in enumerate(zip(weights, pads)):
        sources.append(last)
        last = made.conv(i, last, weight, own, bias)
        size = [n + own[a] + own[a + 2] - weight[2 + a] + 1 for a, n in enumerate(size)]
        last = made.op("Relu", last, to=f"r{i}") if relu else last
    lead = (image[0], weights[len(sources) - 1][0])
    made.nodes.append(
        helper.make_node("MaxPool", [last], ["p", "i"], **(pool or {"kernel_shape": [2, 2], "strides": [2, 2]}))
    )
    made.shapes["dp"] = (*lead, *(n // 2 for n in size))
    plane, places = size[0] * size[1], (size[0] // 2) * (size[1] // 2)
    made.constant("plane", plane)
    made.constant("axes", [0, 2, 3])
    made.constant("flat", [*lead, places])
    made.constant("all", [*lead, plane])
    made.constant("whole", [*lead, *size])
    made.constant("none", 0, np.float64 if dtype == TensorProto.DOUBLE else np.float32)
    made.op("Mod", "i", "plane", to="m")
    made.op("Reshape", "m", "flat", to="places")
    made.op("Reshape", "dp", "flat", to="updates")
    zero = helper.make_tensor("zero", dtype, [1], [0.0])
    made.op("ConstantOfShape", "all", to="zeros", value=zero)
    made.op("ScatterElements", "zeros", "places", "updates", to="scattered", axis=2, reduction="add")
    gradient = made.op("Reshape", "scattered", "whole", to="back")
    for i in reversed(range(len(sources))):
        if relu:
            gradient = made.relu_back(i, f"r{i}", gradient)
        gradient = made.conv_back(i, sources[i], gradient, pads[i], bias, of_image or i > 0)
    results = [*made.results, *([gradient] if of_image else [])]
    made.nodes += [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ["p", *results]]
    inputs = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in made.shapes.items()]
    shapes = {"p": made.shapes["dp"], "dx0": image, **{f"d{key}": made.shapes[key] for key in made.shapes}}
    outputs = [helper.make_tensor_value_info(f"{name}_out", dtype, shapes[name]) for name in ["p", *results]]
    graph = helper.make_graph(made.nodes, "g", inputs, outputs, made.constants)
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    passes = ("infer-shapes", "fuse-relu-gradient", "eliminate-dead-code")
    options = parse(opt_level=0, passes=passes, strip_provenance=True)  # as if it had been captured so
    return to_proto(compile_model(read_model(source), options).model)


def assert_same(source: onnx.ModelProto, compiled: onnx.ModelProto) -> None:
    """Random numbers, and halves, of which many are equal: sums of these are exact."""
    rng = np.random.default_rng(0)
    for whole in (False, True):
        feeds = {}
        for value in source.graph.input:
            array = rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim])
            feeds[value.name] = (np.round(array) / 2 if whole else array).astype(np.float32)
        before, after = (evaluate(ir.from_proto(each), feeds) for each in (source, compiled))
        assert list(before) == list(after)
        for name, wanted in before.items():
            allowed = 0 if whole else 1e-5 * max(1, abs(wanted).max())
            np.testing.assert_allclose(after[name], wanted, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("of_image", [True, False])
def test_few_channels_work_on_pairs_of_columns_backward_too(relu: bool, bias: bool, of_image: bool) -> None:
    source = step((2, 3, 6, 8), ((5, 3, 3, 3), (7, 5, 3, 3)), relu=relu, bias=bias, of_image=of_image)
    compiled = run_passes(source, PASS)
    assert not {"MaxPool", "ScatterElements"} & {*ops(compiled)}
    assert ops(compiled).count("Conv") == 1 + 2 + 2 + 1
    assert ops(compiled).count("ConvTranspose") == 2 + of_image
    assert_same(source, compiled)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("image", "weight", "pads"),
    [
        ((2, 3, 6, 8), (4, 3, 3, 3), ONES),
        ((3, 130, 4, 6), (131, 130, 3, 3), ONES),
        ((2, 3, 7, 8), (4, 3, 4, 3), ONES),
        ((1, 2, 9, 5), (3, 2, 5, 2), (2, 1, 1, 1)),
        ((2, 2, 4, 4), (3, 2, 1, 1), (1, 2, 1, 2)),
        ((2, 2, 5, 5), (3, 2, 5, 5), (3, 1, 2, 4)),
    ],
)
def test_other_convolutions_are_split_in_four(
    relu: bool, image: tuple[int, ...], weight: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    source = step(image, (weight,), pads=(pads,), relu=relu)
    compiled = run_passes(source, PASS)
    assert not {"MaxPool", "ScatterElements"} & {*ops(compiled)}
    assert (ops(compiled).count("Conv"), ops(compiled).count("ConvTranspose")) == (8, 4)
    assert_same(source, compiled)


@pytest.mark.parametrize(
    ("image", "weights", "pads"),
    [
        ((2, 3, 6, 8), ((130, 3, 3, 3), (128, 130, 3, 3)), (ONES, ONES)),
        ((1, 2, 8, 8), ((4, 2, 3, 2), (6, 4, 5, 3)), ((1, 1, 1, 0), (3, 1, 1, 1))),
        ((1, 2, 5, 8), ((4, 2, 1, 4), (6, 4, 2, 3)), ((0, 2, 1, 1), (1, 1, 2, 1))),
        ((2, 1, 6, 6), ((3, 1, 5, 5), (2, 3, 3, 2)), ((2, 2, 2, 2), (1, 2, 1, 1))),
    ],
)
def test_two_convolutions_of_any_size(
    image: tuple[int, ...], weights: tuple[tuple[int, ...], ...], pads: tuple[tuple[int, ...], ...]
) -> None:
    source = step(image, weights, pads=pads)
    compiled = run_passes(source, PASS)
    assert not {"MaxPool", "ScatterElements"} & {*ops(compiled)}
    assert_same(source, compiled)


@pytest.mark.parametrize("weights", [((5, 3, 3, 3), (7, 5, 3, 3)), ((130, 3, 3, 3),)], ids=["pairs", "four"])
def test_in_double_on_xla_they_are_equal_to_the_last_bits(weights: tuple[tuple[int, ...], ...]) -> None:
    pytest.importorskip("jax")
    source = step((2, 3, 6, 8), weights, dtype=TensorProto.DOUBLE)
    compiled = run_passes(source, PASS)
    assert "MaxPool" not in ops(compiled)
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in source.graph.input
    }
    before, after = (load_executable(ir.from_proto(each), "xla:cpu")(feeds) for each in (source, compiled))
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=0, atol=1e-12 * abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize(
    "source",
    [
        step((2, 3, 6, 6), ((4, 3, 3, 3),), pads=((0, 1, 2, 1),)),
        step((2, 3, 8, 8), ((4, 3, 3, 3),), pool={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}),
    ],
    ids=["no padding at one side", "windows overlap"],
)
def test_other_shapes_stay(source: onnx.ModelProto) -> None:
    assert ops(run_passes(source, PASS)) == ops(source)


@pytest.mark.parametrize("name", ["r0", "i", "m", "back", "dc0"])
def test_values_that_others_read_stay(name: str) -> None:
    source = step((2, 3, 6, 8), ((4, 3, 3, 3),))
    kind = TensorProto.INT64 if name in "im" else TensorProto.FLOAT
    if name == "dc0":
        name = next(node.output[0] for node in source.graph.node if node.domain == "pfvm")
    del source.graph.value_info[:]
    source.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    compiled = run_passes(source, PASS)
    assert "MaxPool" in ops(compiled)
    assert_same(source, compiled)


def test_a_pool_without_gradient_stays() -> None:
    source = step((2, 3, 6, 8), ((4, 3, 3, 3),))
    del source.graph.output[1:]
    assert "MaxPool" in ops(run_passes(source, "eliminate-dead-code", PASS))


def test_a_gradient_that_nobody_reads_is_no_gradient() -> None:
    source = step((2, 3, 6, 8), ((4, 3, 3, 3),))
    (last,) = (i for i, node in enumerate(source.graph.node) if node.op_type == "ReluGrad")
    pooled = next(node for node in source.graph.node if node.output[0] == "p_out")
    del source.graph.output[1:], source.graph.node[last + 1 :]
    source.graph.node.append(pooled)
    assert ops(run_passes(source, PASS)) == ops(source)


def test_a_scatter_that_does_not_add_stays() -> None:
    source = step((2, 3, 6, 8), ((4, 3, 3, 3),))
    (scatter,) = (node for node in source.graph.node if node.op_type == "ScatterElements")
    (place,) = [i for i, attribute in enumerate(scatter.attribute) if attribute.name == "reduction"]
    del scatter.attribute[place]
    for opset in (18, 13):
        next(each for each in source.opset_import if not each.domain).version = opset
        assert ops(run_passes(source, PASS)) == ops(source)
