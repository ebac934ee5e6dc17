"""Promise: optimize and load take a model in any form, give the same form back, and never change their argument."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from pfvm.errors import InputError, InvalidModelError, MismatchError, MissingExtraError, NoDeviceError, OptionError
from pfvm.runtime.api import compile_source
from pfvm.runtime.verify import make_verifier

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n,3] x) => (float[n,3] y) <float[3] a = {1,2,3}, float[3] b = {4,5,6}>
{ i = Identity (x)  c = Add (a, b)  dead = Relu (i)  y = Mul (i, c) }"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = X * [5, 7, 9]


@pytest.fixture
def proto() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_load_of_something_else_is_a_named_error() -> None:
    for wrong in (None, 3, [], object()):
        with pytest.raises(InputError, match=r"load takes a path, bytes, a ModelProto or an onnx_ir\.Model, not"):
            pfvm.load(wrong)  # type: ignore[arg-type]


def test_proto_in_proto_out(proto: onnx.ModelProto) -> None:
    before = proto.SerializeToString()
    result = pfvm.optimize(proto)
    assert isinstance(result, onnx.ModelProto)
    assert [n.op_type for n in result.graph.node] == ["Mul"]
    assert proto.SerializeToString() == before


def test_ir_in_ir_out(proto: onnx.ModelProto) -> None:
    model = ir.from_proto(proto)
    result = pfvm.optimize(model)
    assert isinstance(result, ir.Model)
    assert result is not model
    assert [n.op_type for n in result.graph] == ["Mul"]
    assert [n.op_type for n in model.graph] == ["Identity", "Add", "Relu", "Mul"]
    np.testing.assert_array_equal(pfvm.load(result)({"x": X})["y"], Y)


@pytest.mark.parametrize("kind", [str, Path])
def test_path_in_path_out(proto: onnx.ModelProto, tmp_path: Path, kind: type) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(proto, source)
    result = pfvm.optimize(kind(source), output=target)
    assert isinstance(result, kind)
    assert Path(result) == target
    np.testing.assert_array_equal(pfvm.load(target)({"x": X})["y"], Y)


def test_a_path_needs_an_output(proto: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(OptionError, match="needs output=PATH"):
        pfvm.optimize(tmp_path / "in.onnx")


def test_other_arguments_are_refused(proto: onnx.ModelProto) -> None:
    with pytest.raises(InputError, match=r"takes a path, a ModelProto .*, got dict"):
        pfvm.optimize({})  # type: ignore[type-var]
    with pytest.raises(OptionError, match="no option optlevel"):
        pfvm.optimize(proto, optlevel=2)


def test_load_takes_every_form(proto: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "m.onnx")
    for source in (
        proto,
        proto.SerializeToString(),
        ir.from_proto(proto),
        tmp_path / "m.onnx",
        str(tmp_path / "m.onnx"),
    ):
        exe = pfvm.load(source)
        assert [s.name for s in exe.inputs] == ["x"]
        np.testing.assert_array_equal(exe({"x": X})["y"], Y)


def test_load_refuses_what_is_no_model() -> None:
    with pytest.raises(InvalidModelError, match="not an ONNX model"):
        pfvm.load(b"hello")


def test_verify_compares_after_every_pass(proto: onnx.ModelProto) -> None:
    from pfvm.compiler.options import parse

    result = compile_source(proto, parse(verify=True))
    assert any(record.max_difference == 0.0 for record in result.passes)


def test_the_verifier_names_the_pass_and_the_output(proto: onnx.ModelProto) -> None:
    verifier = make_verifier(ir.from_proto(proto))
    assert verifier(ir.from_proto(proto), "nothing") == 0.0
    wrong = onnx.parser.parse_model(TEXT.replace("{4,5,6}", "{4,5,7}"))
    with pytest.raises(MismatchError, match=r"pass fold-constants changed output 'y': .*worst at \[\d+, 2\]"):
        verifier(ir.from_proto(wrong), "fold-constants")
    broken = onnx.parser.parse_model(TEXT.replace("Mul (i, c)", "Foo (i, c)"))
    with pytest.raises(MismatchError, match=r"after pass p the model no longer runs: .*'Foo'"):
        verifier(ir.from_proto(broken), "p")


def test_the_verifier_blames_no_pass_for_what_a_model_makes_of_rounding() -> None:
    """20 steps of a chaotic map, written in two ways: they are far apart, and so is the first when its input moves."""

    def steps(rate: float, form: str) -> ir.Model:
        values = f"<float rate = {{{rate}}}, float one = {{1}}>"
        nodes = "".join(form.replace("#", str(i)).replace("@", str(i + 1)) for i in range(20))
        text = f"g (float[8] x) => (float[8] s20) {values} {{ k = Add (x, one) s0 = Sigmoid (k) {nodes} }}"
        return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}')

    first = "a# = Sub (one, s#)  b# = Mul (rate, s#)  s@ = Mul (b#, a#) "
    other = "a# = Mul (rate, s#)  b# = Mul (a#, s#)  s@ = Sub (a#, b#) "
    verifier = make_verifier(steps(3.9, first))
    assert verifier(steps(3.9, other), "p") > 1e-3
    with pytest.raises(MismatchError, match="pass p changed output 's20'"):
        verifier(steps(0.1, other), "p")


def test_the_verifier_leaves_random_outputs_alone() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] r, float[4] y)
    { r = RandomNormalLike (x)  y = Neg (x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert make_verifier(model)(model, "p") == 0.0


def test_a_device_to_compile_for_is_checked_before_any_work() -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(header + "g (float[2] x) => (float[2] y) { y = Relu (x) }")
    with pytest.raises(OptionError, match="xla:cpu"):
        pfvm.optimize(model, device="xla:cpuu")
    with pytest.raises((NoDeviceError, MissingExtraError), match="xla:tpu"):
        pfvm.optimize(model, device="xla:tpu")
    assert len(pfvm.optimize(model, device="pfvm:cpu").graph.node) == 1
