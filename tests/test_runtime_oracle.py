"""Promise: the oracle is ONNX Runtime without optimizations, else onnx.reference; and "equal" is what the docs say."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from pfvm.errors import InputError, UnsupportedOpError
from pfvm.runtime.compare import Tolerance, difference, scaled_error
from pfvm.runtime.oracle import ORT, REFERENCE, Oracle, oracle

T = Tolerance()


def model(text: str, opset: int = 21) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>' + text))


def test_onnx_runtime_comes_first() -> None:
    result = oracle(model("g (float[2] x) => (float[2] y) { y = Neg (x) }"), {"x": np.ones(2, np.float32)})
    assert result.engine == ORT
    assert result.outputs["y"].tolist() == [-1, -1]


def test_double_conv_falls_to_the_reference_in_float64() -> None:
    text = "g (double[1,1,3,3] x, double[1,1,2,2] w) => (double[1,1,2,2] y) { y = Conv (x, w) }"
    x, w = np.arange(9.0).reshape(1, 1, 3, 3), np.full((1, 1, 2, 2), 1 / 3)
    result = oracle(model(text), {"x": x, "w": w})
    assert result.engine == REFERENCE
    assert result.outputs["y"].dtype == np.float64
    np.testing.assert_allclose(result.outputs["y"].reshape(-1), np.array([8, 12, 20, 24]) / 3, rtol=1e-15)


def test_the_reference_reads_external_weights(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (double[1,1,3,3] x) => (double[1,1,2,2] y) { y = Conv (x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 1, 2, 2)), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    result = oracle(ir.load(tmp_path / "m.onnx"), {"x": np.ones((1, 1, 3, 3))})
    assert result.engine == REFERENCE
    assert result.outputs["y"].reshape(-1).tolist() == [4, 4, 4, 4]


def test_neither_engine_knows_the_op() -> None:
    with pytest.raises(UnsupportedOpError, match="Foo"):
        Oracle(model("g (float[2] x) => (float[2] y) { y = Foo (x) }"))({"x": np.ones(2, np.float32)})


def test_the_reference_checks_its_inputs_too() -> None:
    text = "g (double[1,1,3,3] x, double[1,1,2,2] w) => (double[1,1,2,2] y) { y = Conv (x, w) }"
    with pytest.raises(InputError, match="missing input 'w'"):
        Oracle(model(text))({"x": np.zeros((1, 1, 3, 3))})


# ---- equal


def test_floats_within_the_stated_tolerance() -> None:
    """|a-b| ≤ 1e-5·max(1, max|ref|) + 1e-3·|ref|"""
    a = np.array([0.0, 1.0, 1000.0], np.float32)
    assert difference("y", a, a + np.float32([0.009, 0.0109, 1.0]), T) is None
    found = difference("y", a, a + np.float32([0.0, 0.02, 0.0]), T)
    assert found is not None
    assert "1 of 3 elements differ, worst at [1]: 1.0 against" in str(found)
    assert found.error == pytest.approx(0.02 / (1e-2 + 1e-3), rel=1e-2)


def test_small_references_are_scaled_by_one() -> None:
    a = np.array([1e-6], np.float32)
    assert difference("y", a, a + np.float32(9e-6), T) is None
    assert difference("y", a, a + np.float32(2e-5), T) is not None


def test_nan_and_infinity() -> None:
    a = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert difference("y", a, a.copy(), T) is None
    for index, value in ((0, 0.0), (1, -np.inf), (1, 1e300), (3, np.nan), (3, np.inf)):
        b = a.copy()
        b[index] = value
        found = difference("y", a, b, T)
        assert found is not None
        assert f"worst at [{index}]" in str(found)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([2**62]), np.array([2**62 + 1])),
        (np.array([True]), np.array([False])),
        (np.array(["a"]), np.array(["b"])),
        (np.array([1], ml_dtypes.int4), np.array([2], ml_dtypes.int4)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, np.float32)),
        ([np.zeros(2)], [np.zeros(2), np.zeros(2)]),
        ([np.zeros(2)], [np.ones(2)]),
        (None, np.zeros(2)),
        ({"a": 1.0}, {"b": 1.0}),
    ],
)
def test_different(a: object, b: object) -> None:
    assert difference("y", a, b, T) is not None
    assert difference("y", a, a, T) is None
    assert difference("y", b, b, T) is None


def test_strings_are_equal_in_any_array_type() -> None:
    assert difference("y", np.array(["a", "b"]), np.array(["a", b"b"], object), T) is None


def test_low_precision_is_not_asked_for_more_than_it_has() -> None:
    one = np.ones(1, ml_dtypes.bfloat16)
    assert difference("y", one, np.array([1.0078125], ml_dtypes.bfloat16), T) is None
    assert difference("y", one, np.array([1.03125], ml_dtypes.bfloat16), T) is not None
    assert difference("y", one.astype(np.float32), np.float32([1.0078125]), T) is not None


def test_scaled_error() -> None:
    assert scaled_error(np.array([100.0, 1.0]), np.array([101.0, 1.0])) == pytest.approx(0.01)
    assert scaled_error(np.array([1]), np.array([5])) == 0.0
