"""Promise: `check` says whether two models are equal, and if not, which output and which node differ first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.errors import InputError, OptionError, UnsupportedOpError
from pfvm.runtime.compare import Tolerance
from pfvm.runtime.device import load_executable
from pfvm.runtime.oracle import ORT, REFERENCE
from pfvm.tools import check as tools_check
from pfvm.tools.check import Settings, check, check_files
from pfvm.tools.report import check_lines

NODES = Settings(nodes=True)
BASE = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n,3] x) => (float[n,3] y, int64[n] k) <float[3] w = {1,2,3}>
{ [mul] a = Mul (x, w)  [relu] b = Relu (a)  [add] y = Add (b, w)  [arg] k = ArgMax <axis=1, keepdims=0> (y) }"""


def proto(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def test_equal() -> None:
    report = check(proto(BASE), proto(BASE))
    assert report.equal
    assert report.cases == ["seed 0", "seed 1", "seed 2", "all-zero inputs"]
    assert not report.warnings
    assert check_lines(report)[0] == "equal"
    assert check_lines(report)[1].startswith(f"  compared: both by {ORT}, on seed 0, ")
    assert "1e-05*max(1, max|a|) + 0.001*|a|" in check_lines(report)[-1]
    assert report.engine_a == ORT


def test_the_first_output_that_differs() -> None:
    report = check(proto(BASE), proto(BASE.replace("Relu", "Neg")))
    assert not report.equal
    assert report.case == "seed 0"
    assert report.difference is not None
    assert report.difference.name == "y"
    assert "worst at [" in str(report.difference)
    assert report.node is None


def test_the_first_node_that_differs() -> None:
    other = BASE.replace("b = Relu (a)", "b = Neg (a)")
    report = check(proto(BASE), proto(other), Settings(nodes=True))
    assert report.node is not None
    assert report.node.startswith("Relu 'relu': 'b': ")
    assert any(line.startswith("  first node that differs: Relu 'relu'") for line in check_lines(report))


def test_another_shape_is_a_difference_that_rounding_cannot_explain() -> None:
    other = BASE.replace("keepdims=0", "keepdims=1").replace("int64[n] k", "int64[n,1] k")
    report = check(proto(BASE), proto(other))
    assert report.difference is not None and "shape [2] against [2, 1]" in str(report.difference)


def test_only_all_zero_inputs_show_a_lost_epsilon() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,8] x) => (float[2,8] y) <float e = {EPS}>
    { s = ReduceMean <noop_with_empty_axes=0> (x)  q = Mul (x, x)  m = ReduceMean (q)  v = Add (m, e)  r = Sqrt (v)
      y = Div (x, r) }"""
    report = check(proto(text.replace("EPS", "1e-12")), proto(text.replace("EPS", "0")))
    assert report.case == "all-zero inputs"
    assert report.difference is not None


def test_signature_differences_come_first() -> None:
    other = BASE.replace("float[n,3] x", "float[m,3] x").replace("float[3] w =", "float[3] u = {0,0,0}, float[3] w =")
    other = other.replace("int64[n] k", "int64[n] q").replace("k = ArgMax", "q = ArgMax")
    report = check(proto(BASE), proto(other))
    assert report.signature == [
        "input 'x' is float[n,3] in the first model, float[m,3] in the second",
        "output 'k' only in the first model",
        "output 'q' only in the second model",
    ]
    assert report.difference is None, "the common output is equal"
    assert not report.equal


def test_a_folded_output_keeps_its_declared_shape() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x) => (float[?] y, float[2] z) <float[3] a = {1,2,3}>
    { y = Identity (a)  z = Relu (x) }"""
    assert check(proto(text), pfvm.optimize(proto(text))).signature == []


def test_another_order_and_overridable_initializers_are_signature_differences() -> None:
    two = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] a, float[2] b) => (float[2] y) { y = Add (a, b) }'
    swapped = two.replace("float[2] a, float[2] b", "float[2] b, float[2] a")
    assert check(proto(two), proto(swapped)).signature == ["inputs in another order: ['a', 'b'] against ['b', 'a']"]
    with_default = two.replace("float[2] b)", "float[2] b = {1,1})")
    assert check(proto(two), proto(with_default)).signature == [
        "input 'b' only in the first model",
        "overridable initializer 'b' only in the second model",
    ]


def test_a_constant_output_is_a_warning() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y, float[2] z)
    { y = Sub (x, x)  z = Neg (x) }"""
    report = check(proto(text), proto(text))
    assert report.equal
    assert len(report.warnings) == 1
    assert "output 'y' was the same for all 4 inputs tried" in report.warnings[0]


def test_random_outputs_are_not_compared() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] r, float[4] y)
    { r = RandomNormalLike (x)  y = Neg (x) }"""
    report = check(proto(text), proto(text.replace("RandomNormalLike", "RandomNormalLike <seed=7.0>")))
    assert report.equal
    assert any("'r' is random" in warning for warning in report.warnings)


def test_one_model_on_two_devices() -> None:
    source = proto(BASE)
    report = check(source, source, Settings(device_a="oracle", device_b="pfvm:cpu"))
    assert report.equal
    assert (report.engine_a, report.engine_b) == (ORT, "pfvm:cpu")
    with pytest.raises(OptionError, match="unknown device"):
        check(source, source, Settings(device_b="nowhere"))


def test_the_engine_is_the_reference_where_ort_has_no_kernel() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (double[1,1,3,3] x, double[1,1,2,2] w) => (double[1,1,2,2] y) { y = Conv (x, w) }"""
    source = proto(text)
    assert check(source, source).engine_a == REFERENCE
    assert check(source, source, Settings(device_b="pfvm:cpu")).equal  # which expands it, in double
    no_way = proto(text.replace("double[1,1,2,2] w) => (double[1,1,2,2] y)", "float w) => (double[1,1,3,3] y)"))
    no_way.graph.node[0].CopyFrom(onnx.helper.make_node("LRN", ["x"], ["y"], size=3))
    with pytest.raises(UnsupportedOpError, match="LRN"):
        check(no_way, no_way, Settings(device_b="pfvm:cpu"))


def test_a_second_model_that_fails_on_the_inputs() -> None:
    good = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n,6] x, int64[2] s) => (float[?,?] y) { y = Reshape (x, s) }"""
    bad = good.replace("Reshape (x, s)", "Expand (x, s)")
    feeds = {"x": np.zeros((2, 6), np.float32), "s": np.array([3, 4])}
    report = check(proto(good), proto(bad), Settings(feeds=feeds))
    assert report.difference is not None
    assert "the second model fails" in report.difference.reason
    assert report.cases == ["the given inputs"]
    with pytest.raises(InputError, match="missing input 's'"):
        check(proto(good), proto(good), Settings(feeds={"x": feeds["x"]}))


def test_tolerance_is_the_users() -> None:
    base = BASE.replace(", int64[n] k", "").replace("[arg] k = ArgMax <axis=1, keepdims=0> (y)", "")
    other = base.replace("{1,2,3}", "{1,2,3.01}")
    assert not check(proto(base), proto(other)).equal
    assert check(proto(base), proto(other), Settings(tolerance=Tolerance(rtol=0.1, atol=0.1))).equal


def test_inputs_that_the_first_model_refuses_are_a_warning() -> None:
    """All zeros make a Range of no elements, which ArgMax cannot take."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4] x) => (int64 y) <int64 o = {0}, int64 d = {1}, float t = {9}>
    { a = Mul (x, x)  b = ReduceMax <keepdims=0> (a)  c = Mul (b, t)  u = Ceil (c)  n = Cast <to=7> (u)
      r = Range (o, n, d)  y = ArgMax <axis=0, keepdims=0> (r) }"""
    report = check(proto(text), proto(text))
    assert report.equal
    assert report.cases == ["seed 0", "seed 1", "seed 2"]
    assert any("all-zero inputs not tried" in warning for warning in report.warnings)
    never = text.replace("ReduceMax <keepdims=0> (a)", "ReduceMin <keepdims=0> (z)").replace(
        "{ a =", "{ z = Sub (x, x)  a ="
    )
    with pytest.raises(InputError, match="no made-up data fits"):
        check(proto(never), proto(never))


def test_models_without_inputs() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g () => (float[2] y) <float[2] w = {1,2}> { y = Neg (w) }"""
    report = check(proto(text), proto(text))
    assert report.equal
    assert report.cases == ["seed 0"]
    assert not report.warnings


def test_one_model_alone_is_nothing_to_compare(tmp_path: Path) -> None:
    onnx.save(proto(BASE), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="name a second model, or --device-b"):
        check_files(tmp_path / "m.onnx", None, "oracle", "oracle", 1e-3, 1e-5, False, None, 0, [], None)


def test_the_search_for_a_node_always_says_what_it_found() -> None:
    assert any("none, as all outputs agree" in line for line in check_lines(check(proto(BASE), proto(BASE), NODES)))
    renamed = BASE.replace("float[n,3] x", "float[n,3] z").replace("Mul (x", "Mul (z")
    assert "not searched" in check(proto(BASE), proto(renamed), NODES).node_note


def test_pfvm_runs_on_as_many_threads_as_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of threads is another order of sums: a model would differ from itself."""
    seen = []

    def load(model: object, device: object, **options: object) -> object:
        seen.append(options["threads"])
        return load_executable(model, device, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tools_check, "load_executable", load)
    check(proto(BASE), proto(BASE), Settings(device_b="pfvm:cpu"))
    check(proto(BASE), proto(BASE), Settings(device_b="pfvm:cpu", threads=2))
    assert seen == [1, 2]


def test_a_difference_that_rounding_explains_is_not_equal_with_a_remark() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] y) <float big = {FACTOR}>
    { a = Mul (x, big)  y = Sin (a) }"""
    report = check(proto(text.replace("FACTOR", "100000.0")), proto(text.replace("FACTOR", "100000.04")))
    assert not report.equal
    assert len(report.warnings) == 1
    assert "rounding may explain it" in report.warnings[0]
    assert not check(proto(text.replace("FACTOR", "1.0")), proto(text.replace("FACTOR", "1.1"))).warnings


@pytest.mark.parametrize("rtol", [-1.0, float("nan")])
def test_a_tolerance_is_not_negative(rtol: float) -> None:
    with pytest.raises(OptionError, match="--rtol must be 0 or more"):
        Tolerance(rtol=rtol)
