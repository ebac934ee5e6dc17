"""Promise: int8 and float16 keep the signature, are smaller, and their report says what they cost in accuracy."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import onnx
import pytest
from cli_support import Pfvm, one_line
from onnx import numpy_helper
from pfvm.compiler.exporter import to_proto, weight_bytes
from pfvm.compiler.importer import read_model
from pfvm.errors import OptionError, UnsupportedOpError
from pfvm.runtime.oracle import REFERENCE
from pfvm.runtime.reduced import Form, accuracy, reduce
from pfvm.tools.check import signature_differences
from support import model


def net() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = model("""agraph (float[batch,64] x) => (float[batch,10] y, int64[batch] k) {
        [first] a = Gemm(x, v, b) [act] h = Relu(a) [second] m = MatMul(h, w) y = Softmax(m) k = ArgMax<axis=1, keepdims=0>(m) }""")  # noqa: E501
    for name, shape in (("v", (64, 128)), ("b", (128,)), ("w", (128, 10))):
        array = (rng.standard_normal(shape) / 8).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    proto.metadata_props.add(key="author", value="me")
    return proto


@pytest.mark.parametrize(("form", "part", "largest"), [("dynamic-int8", 0.3, 0.2), ("fp16", 0.55, 0.01)])
def test_smaller_same_signature_and_close(form: Form, part: float, largest: float) -> None:
    original = read_model(net())
    reduced = reduce(original, form)
    assert signature_differences(original, reduced) == []
    assert weight_bytes(reduced) < part * weight_bytes(original)
    assert reduced.metadata_props["author"] == "me" and reduced.producer_name == original.producer_name
    onnx.checker.check_model(to_proto(reduced))
    (found,) = accuracy(original, reduced).outputs
    assert found.output == "y" and 0 < found.mean <= found.largest < largest
    assert found.top1 is not None and found.top1 > 0.8 and not found.broken
    assert "in the mean" in str(found)


def test_an_equal_model_has_no_error() -> None:
    original = read_model(net())
    (found,) = accuracy(original, original).outputs
    assert (found.largest, found.mean, found.top1, found.broken) == (0, 0, 1, 0)


@pytest.mark.parametrize("pad", ["Pad(x, pads)", "com.microsoft.Pad(x, pads)"])
def test_what_the_reference_cannot_run_is_compared_in_onnx_runtime(pad: str) -> None:
    original = read_model(
        model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        agraph (float[batch,4] x) => (float[batch,3] y)
        <int64[4] pads = {{0, 0, 0, -1}}, float[3] w = {{1, 2, 3}}> {{ a = {pad} y = Mul(a, w) }}""")
    )
    report = accuracy(original, reduce(original, "fp16"))
    assert report.engine != REFERENCE and report.outputs[0].largest < 0.01


def test_a_model_that_the_tool_spoils_is_refused_in_its_name() -> None:
    """It casts inputs by a number, which opset 5 has as a text."""
    old = read_model(
        model('<ir_version: 3, opset_import: ["" : 5]> g (float[2,3] x) => (float[2,3] y) { y = Clip<max = 6.0>(x) }')
    )
    with pytest.raises(UnsupportedOpError, match="fp16: ONNX Runtime's tool makes a model that does not load: Cast"):
        reduce(old, "fp16")


@pytest.mark.parametrize("form", ["fp16", "dynamic-int8"])
def test_a_weight_that_is_an_output(form: Form) -> None:
    original = read_model(
        model("""agraph (float[2] x, float[2] w_weight) => (float[2] y, float[2] w, int64[1] k)
        <float[2] w = {1, 2}, int64[1] k = {3}> { a = Mul(x, w) y = Add(a, w_weight) }""")
    )
    reduced = reduce(original, form)
    assert signature_differences(original, reduced) == []
    assert [each.largest for each in accuracy(original, reduced).outputs] == pytest.approx([0, 0], abs=0.01)


def test_the_standards_attention_stays_in_float() -> None:
    text = """<ir_version: 10, opset_import: ["" : 23]> agraph (float[batch,5,64] x) => (float[batch,5,8] y) {
        q = MatMul(x, w) y = Attention<q_num_heads=2, kv_num_heads=2>(q, q, q) }"""
    proto = model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((64, 8), np.float32), "w"))
    found = [node.op_type for node in reduce(read_model(proto), "dynamic-int8").graph]
    assert "MatMulInteger" in found and "Attention" in found


def test_a_number_too_large_for_half_precision_is_reported() -> None:
    proto = model("agraph (float[2,3] x) => (float[2,3] y) { a = Mul(x, k) b = Exp(a) y = Sqrt(b) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(12), "k"))
    original = read_model(proto)
    report = accuracy(original, reduce(original, "fp16"))
    assert report.engine == REFERENCE and report.outputs[0].broken > 0


def test_state_is_refused() -> None:
    proto = model("agraph (float[2,3] x, float[3,2] w) => (float[2,2] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    with pytest.raises(OptionError, match="freeze them first"):
        reduce(read_model(proto), "fp16")


@pytest.mark.parametrize(("flag", "form"), [(("--quantize", "dynamic-int8"), "dynamic-int8"), (("--fp16",), "fp16")])
def test_the_command(pfvm: Pfvm, tmp_path: pathlib.Path, flag: tuple[str, ...], form: str) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    result = pfvm("compile", tmp_path / "m.onnx", "-o", tmp_path / "out.onnx", *flag)
    assert result.code == 0 and f"{form}, in " in result.err and "  y: error " in result.err
    assert (tmp_path / "out.onnx").stat().st_size < 0.7 * (tmp_path / "m.onnx").stat().st_size
    report = json.loads(pfvm("compile", tmp_path / "m.onnx", "-o", tmp_path / "out.onnx", *flag, "--json").out)
    assert report["accuracy"]["form"] == form and 0 < report["accuracy"]["outputs"][0]["largest"] < 0.2


def test_one_form_at_a_time(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    both = pfvm("compile", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--fp16", "--quantize", "dynamic-int8")
    assert "choose one" in one_line(both) and not (tmp_path / "o.onnx").exists()
